"""The figures of a timed run: each case against dense on the same samples, by family and over all families."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evals.results import bootstrap
from evals.results.bootstrap import Interval
from evals.results.ttft_model import Clock
from evals.run.ask import Case, Timing
from evals.selection.selectors import DENSE

ALL = "mean of families"
CAN_DO = 0.5
"""Smallest dense score of a family that says anything about a selection."""


@dataclass(frozen=True)
class Figure:
    """One case on the samples of a family. score, dense: mean scores. difference: of score and dense, paired, with its
    interval. kept: mean share of the prompt's tokens that the target read. time: mean time to the first token, divided
    by dense's.
    """

    n: int
    score: float
    dense: float
    difference: Interval
    kept: float
    time: float


@dataclass(frozen=True)
class _Outcome:
    score: float
    dense: float
    kept: float
    seconds: float
    dense_seconds: float


class Comparison:
    """All figures of a result. families: those of the result, in its order. cases: all but dense.

    able: the families that dense can do; `ALL` is the mean over these. Without timings, `Figure.time` is not a number.
    """

    def __init__(self, result: dict[str, Any], able: Sequence[str] | None = None) -> None:
        """able: instead of the families that dense can do in this result."""
        self.clock = Clock(Timing(**timing) for timing in result["timings"])
        self._outcomes: dict[str, dict[Case, list[_Outcome]]] = defaultdict(lambda: defaultdict(list))
        for sample in result["samples"]:
            self._take(sample)
        self.families = list(self._outcomes)
        self.cases = [case for case in next(iter(self._outcomes.values())) if case[0] != DENSE]
        self.able = [family for family in self.families if (family in able if able else self._can_do(family))]

    def _take(self, sample: dict[str, Any]) -> None:
        scores = {(name, rate): (score, read) for name, rate, score, read in sample["scores"]}
        prompt, (dense, _) = sample["prompt"], scores[DENSE, 1.0]
        whole = self.clock.first_token(DENSE, prompt, prompt)
        for case, (score, read) in scores.items():
            seconds = self.clock.first_token(case[0], prompt, read)
            self._outcomes[sample["family"]][case].append(_Outcome(score, dense, read / prompt, seconds, whole))

    def _can_do(self, family: str) -> bool:
        return self.figure(family, (DENSE, 1.0)).score >= CAN_DO

    def rates(self, selector: str) -> list[float]:
        """The keep rates that a selector ran with, ascending."""
        return sorted(rate for name, rate in self.cases if name == selector)

    def figure(self, family: str, case: Case) -> Figure:
        """A family's figure of a case, or that over the families that dense can do (`ALL`)."""
        names = self.able if family == ALL else [family]
        found = {name: self._outcomes[name][case] for name in names}
        each = [outcome for outcomes in found.values() for outcome in outcomes]

        def mean(of: str) -> float:
            return sum(sum(getattr(o, of) for o in found[name]) / len(found[name]) for name in names) / len(names)

        return Figure(
            len(each),
            mean("score"),
            mean("dense"),
            bootstrap.of_families({name: [o.score - o.dense for o in found[name]] for name in names}),
            mean("kept"),
            sum(o.seconds for o in each) / sum(o.dense_seconds for o in each),
        )

    def against(self, family: str, case: Case, other: Case) -> Interval:
        """The paired difference of two cases' scores in a family or over all, with its interval."""
        names = self.able if family == ALL else [family]
        pairs = {name: zip(self._outcomes[name][case], self._outcomes[name][other], strict=True) for name in names}
        return bootstrap.of_families({name: [a.score - b.score for a, b in both] for name, both in pairs.items()})

    def best_within(self, family: str, selector: str, time: float) -> float | None:
        """The selector's highest mean score among its keep rates whose time is at most `time` of dense's; None without
        one.
        """
        figures = [self.figure(family, (selector, rate)) for rate in self.rates(selector)]
        return max((figure.score for figure in figures if figure.time <= time), default=None)
