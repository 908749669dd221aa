"""When to use Skim and when not, in words that follow from the figures of a run."""

from collections.abc import Sequence

from evals.results.comparison import ALL, CAN_DO, Comparison
from evals.selection.selectors import GUARDED, SPECULATOR

LOSS = 5.0
"""Points below dense up to which a selection counts as good enough."""

ADVISED = (GUARDED, "auto", SPECULATOR)
LEXICAL = ("bm25", "lexical")
"""Selectors by preference; the first one that was measured counts."""


def advise(comparison: Comparison) -> str:
    """One paragraph about the best of ADVISED at the keep rate nearest to its best use, and about BM25 beside the
    speculator's selection.
    """
    selector = _first(comparison, ADVISED) or SPECULATOR
    rates = comparison.rates(selector)
    if not rates or not comparison.able:
        return "No family of tasks can be judged: dense itself scores too low, or nothing was selected."
    rate = next((r for r in rates if _loss(comparison, ALL, selector, r) <= LOSS), rates[-1])
    good = [f for f in comparison.able if _loss(comparison, f, selector, rate) <= LOSS]
    bad = [f for f in comparison.able if f not in good]
    figure = comparison.figure(ALL, (selector, rate))
    words = [
        f"**When to use Skim.** {f'At keep rate {rate:g}, *{selector}*' if rate else f'*{selector}*'} is"
        f" {_points(figure.difference[0])} than dense in the mean over {len(comparison.able)} families, and keeps"
        f" {figure.kept:.2f} of the prompt. Its first token comes after {figure.time:.2f} of dense's time."
    ]
    if good:
        words.append(f"It loses at most {LOSS:g} points in: {_listed(good)}. Use it there.")
    if bad:
        losses = [f"{family} ({_loss(comparison, family, selector, rate):.0f})" for family in bad]
        words.append(f"It loses more in: {_listed(losses)} (points). Keep more there, or run these requests dense.")
    lexical = _first(comparison, LEXICAL)
    if shared := sorted({*comparison.rates(SPECULATOR)} & {*comparison.rates(lexical or "")}):
        words.append(_beside_bm25(comparison, lexical or "", rate if rate in shared else shared[0]))
    unable = [family for family in comparison.families if family not in comparison.able]
    if unable:
        words.append(f"Dense itself scores below {CAN_DO:g} in: {_listed(unable)}. They say nothing about a selection.")
    return " ".join(words)


def _beside_bm25(comparison: Comparison, lexical: str, rate: float) -> str:
    """Both at the same keep rate."""
    cases = (SPECULATOR, rate), (lexical, rate)
    differences = {f: comparison.against(f, *cases) for f in comparison.able}
    better = [family for family, (_, low, _) in differences.items() if low > 0]
    worse = [family for family, (_, _, high) in differences.items() if high < 0]
    figures = [comparison.figure(ALL, case) for case in cases]
    scores, times = [f"{100 * f.score:.0f}" for f in figures], [f"{f.time:.2f}" for f in figures]
    words = [
        f"At keep rate {rate:g}, *{SPECULATOR}* scores {scores[0]} after {times[0]} of dense's time, and BM25 alone"
        f" ({lexical}) {scores[1]} after {times[1]}."
    ]
    if better:
        words.append(f"*{SPECULATOR}* is better than BM25, with an interval above 0, in: {_listed(better)}.")
    if worse:
        words.append(f"BM25 is better, with an interval above 0, in: {_listed(worse)}.")
    rest = [family for family in comparison.able if family not in (*better, *worse)]
    if rest:
        words.append(f"No difference can be shown in: {_listed(rest)}; take the sooner one there.")
    return " ".join(words)


def _first(comparison: Comparison, names: Sequence[str]) -> str | None:
    return next((name for name in names if comparison.rates(name)), None)


def _loss(comparison: Comparison, family: str, selector: str, rate: float) -> float:
    """Points below dense; negative if the selection is better."""
    return -100 * comparison.figure(family, (selector, rate)).difference[0]


def _points(difference: float) -> str:
    points = 100 * difference
    return f"{abs(points):.1f} points {'lower' if points < 0 else 'higher'}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
