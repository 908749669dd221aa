"""The result of `skim eval --questions` as a description, a table and a plot: each way against dense.

Differences from dense are paired by question. Their intervals draw documents anew, not questions, because the questions
about one document are not independent.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import plots
from evals.questions.ways import DEFAULT, NO_DOCUMENT
from evals.results.bootstrap import Interval, of_clusters
from evals.run.ask import Case
from evals.selection.selectors import DENSE

MEAN = "mean of sets"
LENGTHS = (2000, 4096, 8192, 16384)
"""Tokens: the upper ends of the groups by length."""
SHARES = (0.2, 0.4, 1.0)
"""The upper ends of the groups by the share that the default keeps."""

DOCUMENTS = 6
"""Fewer documents give no interval."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One answer: its score and the dense one, from 0 to 1, and the share of the prompt that the target read."""

    set: str
    document: str
    length: int
    score: float
    dense: float
    kept: float


@dataclass(frozen=True, slots=True)
class Figure:
    """A way on some questions. score, dense, kept: means. difference: of score and dense. worse, better: the number of
    questions with a lower or higher score than dense. With several sets, each counts once for the means."""

    n: int
    documents: int
    score: float
    dense: float
    difference: Interval
    kept: float
    worse: int
    better: int


def outcomes(result: dict[str, Any]) -> dict[Case, list[Outcome]]:
    """All answers by case, dense included, in the order of the samples."""
    found: dict[Case, list[Outcome]] = defaultdict(list)
    for sample in result["samples"]:
        scores = {(name, rate): (score, read) for name, rate, score, read in sample["scores"]}
        dense, prompt = scores[DENSE, 1.0][0], sample["prompt"]
        where = sample["task"], sample.get("document") or sample["seed"], prompt
        for case, (score, read) in scores.items():
            found[case].append(Outcome(*where, score, dense, read / prompt))
    return found


def figure(found: Iterable[Outcome]) -> Figure:
    """The figure of one way's answers: the mean of the sets' means."""
    by_set: dict[str, list[Outcome]] = defaultdict(list)
    for one in found:
        by_set[one.set].append(one)
    each = [one for of_set in by_set.values() for one in of_set]

    def mean(of: str) -> float:
        return fmean(fmean(getattr(one, of) for one in of_set) for of_set in by_set.values())

    return Figure(
        len(each),
        len({one.document for one in each}),
        mean("score"),
        mean("dense"),
        of_clusters({name: _by_document(of_set) for name, of_set in by_set.items()}),
        mean("kept"),
        sum(one.score < one.dense for one in each),
        sum(one.score > one.dense for one in each),
    )


def _by_document(found: Sequence[Outcome]) -> list[list[float]]:
    differences: dict[str, list[float]] = defaultdict(list)
    for one in found:
        differences[one.document].append(one.score - one.dense)
    return list(differences.values())


def sets(result: dict[str, Any]) -> list[str]:
    """The sets in the order of the samples."""
    return list(dict.fromkeys(sample["task"] for sample in result["samples"]))


def worst_set(result: dict[str, Any], case: Case = (DEFAULT, 0.0)) -> tuple[str, Figure]:
    """The set in which a way loses most against dense."""
    found = outcomes(result)[case]
    figures = {name: figure(one for one in found if one.set == name) for name in sets(result)}
    name = min(figures, key=lambda one: figures[one].difference[0])
    return name, figures[name]


def whole(result: dict[str, Any], case: Case) -> Figure:
    """A way's figure over all sets."""
    return figure(outcomes(result)[case])


def run_dense(result: dict[str, Any]) -> tuple[int, int]:
    """How many prompts of at least LENGTHS[0] tokens the default runs dense, and of how many."""
    default = [one for one in outcomes(result)[DEFAULT, 0.0] if one.length >= LENGTHS[0]]
    return sum(one.kept == 1 for one in default), len(default)


def against_dense(result: dict[str, Any], case: Case = (DEFAULT, 0.0)) -> str:
    """A way against dense over all sets, with its worst set."""
    of_all, (name, worst) = whole(result, case), worst_set(result, case)
    return (
        f"score {100 * of_all.score:.0f}, dense {100 * of_all.dense:.0f} ({points(of_all)}); {of_all.kept:.2f} of the"
        f" prompt kept; worst set {name}: {100 * worst.score:.0f}, dense {100 * worst.dense:.0f} ({points(worst)})"
    )


def points(found: Figure, what: str = "difference ") -> str:
    """The interval, if there is one: resampled scores that are all equal, or of few documents, give none."""
    if not found.worse + found.better:
        return "no score differs"
    if found.documents < DOCUMENTS:
        return "too few documents"
    _, low, high = found.difference
    return f"{what}{100 * low:+.0f} to {100 * high:+.0f}"


def describe(result: dict[str, Any]) -> str:
    """The conditions, the default against dense, and what each way is."""
    settings, samples = result["settings"], result["samples"]
    pair = f"target `{settings['target']}`" + (
        " behind an endpoint" if settings["endpoint"] else f", speculator `{settings['speculator']}`"
    )
    documents = len({sample["document"] for sample in samples})
    lines = [
        f"{len(samples)} questions about {documents} documents (seed {settings['seed']}), {pair}, greedy decoding."
        " Scores are from 0 to 100. In brackets: the 95 % interval of the paired difference from dense, by documents"
        f" drawn anew (bootstrap; from {DOCUMENTS} documents on). *Kept* is the share of the prompt that the target"
        " reads. *Worse, better*: questions with a lower and with a higher score than dense."
        + (f" {result['note']}" if "note" in result else ""),
        "",
    ]
    if DEFAULT in result["selectors"]:
        dense, long = run_dense(result)
        ran = f"Of {long} prompts with {LENGTHS[0]:,} tokens and more, its guard runs {dense} dense."
        lines += [f"The default: {against_dense(result)}. {ran}", ""]
    return "\n".join([*lines, *(f"- *{name}*: {what}." for name, what in result["selectors"].items())])


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each group of questions and way: all sets, each set, by length, and by what the default keeps."""
    found, rows = outcomes(result), []
    for group, members in _groups(result, found).items():
        for case, answers in found.items():
            if case[0] != DENSE:
                of_case = figure(answers[at] for at in members)
                score = f"{100 * of_case.score:.0f} ({points(of_case, '')})"
                shown = [f"{of_case.kept:.2f}", f"{100 * of_case.dense:.0f}", score]
                rows.append([group, str(of_case.n), _name(case), *shown, f"{of_case.worse}, {of_case.better}"])
    return ["questions", "n", "way", "kept", DENSE, "score", "worse, better"], rows


def _name(case: Case) -> str:
    name, rate = case
    return f"{name}, keep {rate:g}" if rate else name


def _groups(result: dict[str, Any], found: Mapping[Case, list[Outcome]]) -> dict[str, list[int]]:
    """The places of the samples of each group. Groups without a sample are left out, and a division into one group."""
    dense, default = found[DENSE, 1.0], found.get((DEFAULT, 0.0))
    divisions = [[(name, [one.set == name for one in dense]) for name in sets(result)]]
    divisions.append([*_between([one.length for one in dense], LENGTHS, "{} to {} tokens", "{} tokens and more")])
    if default is not None:
        kept = [one.kept for one in default]
        divisions.append([*_between(kept, SHARES, "default keeps {} to {}", "default runs dense")])
    groups = {MEAN: [*range(len(dense))]}
    for division in divisions:
        filled = {name: [at for at, member in enumerate(inside) if member] for name, inside in division}
        filled = {name: members for name, members in filled.items() if members}
        groups |= filled if len(filled) > 1 else {}
    if len(sets(result)) == 1:
        groups = {sets(result)[0] if name == MEAN else name: members for name, members in groups.items()}
    return groups


def _between(values: Sequence[float], ends: Sequence[float], name: str, last: str) -> Iterator[tuple[str, list[bool]]]:
    for low, high in zip((0, *ends), ends, strict=False):
        yield name.format(f"{low:,g}", f"{high:,g}"), [low <= value < high for value in values]
    yield last.format(f"{ends[-1]:,g}"), [value >= ends[-1] for value in values]


def plot(result: dict[str, Any], path: Path) -> None:
    """Score over the kept share: a panel per set, a line per way; dense and no document as horizontal lines."""
    found, names = outcomes(result), sets(result)
    with plots.figure(path, result, panels=len(names)) as axes:
        for axis, name in zip(axes, names, strict=True):
            figures = {case: figure(one for one in answers if one.set == name) for case, answers in found.items()}
            axis.axhline(figures[DENSE, 1.0].score, color="black", linestyle="--", linewidth=1, label=DENSE)
            for way in result["selectors"]:
                of_way = sorted((one.kept, one.score) for (of, _), one in figures.items() if of == way)
                if way == NO_DOCUMENT:
                    axis.axhline(of_way[0][1], color="grey", linestyle=":", linewidth=1, label=way)
                else:
                    axis.plot(*zip(*of_way, strict=True), marker="o", label=way)
            axis.set(title=name, xlabel="share of the prompt that the target reads", ylabel="score", ylim=(-0.05, 1.05))
            axis.set_xlim(0, 1.05)
        axes[0].legend()
