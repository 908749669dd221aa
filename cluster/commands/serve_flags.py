"""The words of `skim serve`: a model or a deployment file, and flags of `vllm serve`.

A flag is the target's and the endpoint's, as vLLM has it; `--speculator.FLAG` is the speculator's.
"""

import os
import re  # noqa: TID251  an operator's flags
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from cluster.config.vllm_options import settings_of_flags, with_located_paths
from cluster.serve.front_process import front_process
from skim_common.errors import SkimError

SPECULATOR = "--speculator."

_NUMBER = re.compile(r"-\d")


def read_words(words: Sequence[str], skim_flags: Collection[str]) -> tuple[str | None, dict[str, Any]]:
    """The model or the deployment file, if one is given, and settings of the deployment by dotted name.

    skim_flags: those of `skim serve`, to propose one of them for a flag that nobody knows. Raises SkimError.
    """
    if not words or (len(words) == 1 and not words[0].startswith("-")):
        return next(iter(words), None), {}
    (given, at_default), (speculator, its_defaults) = _read(_by_pool(words), skim_flags)
    given, speculator = with_located_paths(given, Path.cwd()), with_located_paths(speculator, Path.cwd())
    if wrong := speculator.keys() & {"model_tag", "model", "revision"}:
        shown = speculator["model_tag"] if "model_tag" in wrong else f"{SPECULATOR}{min(wrong)}"
        raise SkimError(
            f"{shown} stands in the speculator's flags: write the target first, and the speculator as"
            " --speculator MODEL or --speculator owner/name@revision"
        )
    settings = settings_of_flags(given, "target", at_default)
    settings |= settings_of_flags(speculator, "speculator", its_defaults)
    what = given.get("model_tag") or given.get("model")
    if what and (revision := given.get("revision")) and not os.path.exists(what):
        what = f"{what}@{revision}"
    return what, settings


def _by_pool(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The target's and the speculator's words. A value follows its flag."""
    target: list[str] = []
    speculator: list[str] = []
    line = target
    for word in words:
        if word.startswith(SPECULATOR):
            line, word = speculator, "--" + word.removeprefix(SPECULATOR)
        elif word.startswith("-") and not _NUMBER.match(word):
            line = target
        line.append(word)
    return target, speculator


def _read(lines: Sequence[Sequence[str]], skim_flags: Collection[str]) -> list[tuple[dict[str, Any], list[str]]]:
    """What each line gives, and the names whose value is vLLM's default, read by vLLM."""
    return [(given, same) for given, same in front_process().ask("read_flags", lines=lines, own=sorted(skim_flags))]
