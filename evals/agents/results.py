"""The result of `skim bench agents`: each mode against dense, by family and by the place of the turn."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from evals.agents.engines import WITHOUT
from evals.questions.results import Figure, figure, outcomes, points
from evals.run.ask import Case
from evals.selection.selectors import DENSE

ALL, FIRST, LATER = "all turns", "first asked turns", "later turns"


def groups(result: dict[str, Any]) -> dict[str, list[int]]:
    """The places of the samples of each group: each family, and the first and the later asked turns of all."""
    found: dict[str, list[int]] = {ALL: []}
    places: dict[str, list[int]] = {FIRST: [], LATER: []}
    seen = set()
    for at, sample in enumerate(result["samples"]):
        found[ALL].append(at)
        found.setdefault(sample["task"], []).append(at)
        places[LATER if sample["seed"] in seen else FIRST].append(at)
        seen.add(sample["seed"])
    if len(found) == 2:
        del found[ALL]
    return found | {name: members for name, members in places.items() if members}


def right(result: dict[str, Any], group: str, case: Case) -> tuple[int, int]:
    """How many answers of a group are right in a mode, and of how many."""
    members = groups(result).get(group, [])
    answers = outcomes(result)[case]
    return sum(answers[at].score == 1 for at in members), len(members)


def counts(result: dict[str, Any], group: str) -> str:
    """The right answers of a group in each mode, in words."""
    shown: list[str] = []
    for case in outcomes(result):
        found, of = right(result, group, case)
        shown.append(f"{case[0]} {found}" if shown else f"{case[0]} {found} of {of}")
    return ", ".join(shown)


def describe(result: dict[str, Any]) -> str:
    """The conditions, and what each mode is."""
    settings, samples = result["settings"], result["samples"]
    conversations = len({sample["seed"] for sample in samples})
    lengths = [sample["prompt"] for sample in samples]
    dense = sum(one.kept == 1 for one in outcomes(result)[WITHOUT, 0.0])
    lines = [
        f"{len(samples)} asked turns of {conversations} conversations, prompts of {min(lengths):,} to {max(lengths):,}"
        f" tokens, target `{settings['target']}`, speculator `{settings['speculator']}`, greedy decoding. The earlier"
        " turns are given with right answers, and are the same in all modes. In brackets: the 95 % interval of the"
        " paired difference from dense in points, by conversations drawn anew. *Kept*: the share of the prompt that the"
        f" target reads for the answer; in later turns with catch-up it is all. Of the {len(samples)} prompts,"
        f" *{WITHOUT}* runs {dense} dense.",
        "",
    ]
    return "\n".join([*lines, *(f"- *{name}*: {what}." for name, what in result["selectors"].items())])


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each group: right answers by mode, and what is kept."""
    found = outcomes(result)
    modes = [case for case in found if case[0] != DENSE]
    rows = []
    for name, members in groups(result).items():
        dense = right(result, name, (DENSE, 1.0))[0]
        cells = []
        for case in modes:
            of_mode = figure(found[case][at] for at in members)
            cells += [_shown(right(result, name, case)[0], of_mode), f"{of_mode.kept:.2f}"]
        rows.append([name, str(len(members)), str(dense), *cells])
    return ["turns", "n", DENSE, *(name for mode, _ in modes for name in (mode, "kept"))], rows


def _shown(count: int, found: Figure) -> str:
    return f"{count} ({points(found, '')})"


def plot(result: dict[str, Any], path: Path) -> None:
    """The share of right answers of each group: a mark for each mode."""
    found = groups(result)
    with plots.figure(path, result, panels=1, height=0.35 * len(found) + 1.4) as (axis,):
        places = np.arange(len(found))
        for case, mark in zip(outcomes(result), "os^", strict=False):
            axis.plot([_share(right(result, name, case)) for name in found], places, mark, label=case[0], alpha=0.7)
        axis.set_yticks(places, labels=list(found))
        axis.invert_yaxis()
        axis.set(xlabel="right answers, percent", xlim=(-3, 103))
        axis.legend()


def _share(found: Sequence[int]) -> float:
    return 100 * found[0] / found[1]
