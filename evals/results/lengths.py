"""The result of `skim eval` over several prompt lengths, for the results page: quality, and time, by prompt length."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from evals.results.comparison import ALL, Comparison, Figure
from evals.run.ask import Case
from evals.selection.selectors import DENSE, GUARDED, GUARDED_LONG, GUARDED_WINDOWS
from kv_transfer.options import LONG_FROM
from router.options.request import PrefillOptions

ALL_LENGTHS = 0
"""Stands for all lengths together."""

SHORTEST = PrefillOptions().min_prompt_tokens
"""Tokens. By default, shorter prompts run dense."""


def by_length(result: dict[str, Any]) -> dict[int, Comparison]:
    """The comparison with dense at each length, ascending, and `ALL_LENGTHS` last.

    The families that count are those that dense can do over all lengths. Times are those of a length: no line through
    the times of all lengths fits, because attention is quadratic.
    """
    result = with_default(result)
    whole = Comparison(result | {"timings": []})
    lengths = sorted({sample["length"] for sample in result["samples"]})
    found = {length: Comparison(_at(result, length), whole.able) for length in lengths}
    return found | {ALL_LENGTHS: whole}


def chosen_by_default(tokens: int) -> str | None:
    """The selector that does what the default does with a prompt of `tokens` tokens and a speculator with a profile.

    None: the prompt is so short that it runs dense.
    """
    if tokens < SHORTEST:
        return None
    return GUARDED_LONG if tokens >= LONG_FROM else GUARDED_WINDOWS


def with_default(result: dict[str, Any]) -> dict[str, Any]:
    """The result with the default (no option): each prompt's answer is that of the selector which the default chooses
    by the prompt's length. A prompt that was not asked with it, or is so short that it runs dense, has none.
    """
    if GUARDED in result["selectors"] or not {GUARDED_WINDOWS, GUARDED_LONG} & result["selectors"].keys():
        return result
    samples = []
    for sample in result["samples"]:
        found = [scores for scores in sample["scores"] if scores[0] == chosen_by_default(sample["prompt"])]
        samples.append({**sample, "scores": [*sample["scores"], *([GUARDED, 0.0, *scores[2:]] for scores in found)]})
    rule = f"*{GUARDED_WINDOWS}* from {SHORTEST:,} tokens on, *{GUARDED_LONG}* from {LONG_FROM:,}"
    what = f"the default: {rule}; these lengths were chosen with results of this kind"
    return {**result, "samples": samples, "selectors": {GUARDED: what, **result["selectors"]}}


def pooled_default(results: Iterable[dict[str, Any]]) -> Figure:
    """The default over all prompts of several results that were asked with it."""
    samples = []
    for result in map(with_default, results):
        for sample in result["samples"]:
            scores = [scores for scores in sample["scores"] if scores[0] in (DENSE, GUARDED)]
            samples += [{**sample, "scores": scores}] if len(scores) == 2 else []
    return Comparison({"samples": samples, "timings": []}).figure(ALL, (GUARDED, 0.0))


def _at(result: dict[str, Any], length: int) -> dict[str, Any]:
    samples = [sample for sample in result["samples"] if sample["length"] == length]
    prompts = {sample["prompt"] for sample in samples}
    timings = [timing for timing in result["timings"] if timing["prompt"] in prompts]
    return result | {"samples": samples, "timings": timings}


def _name(case: Case) -> str:
    name, rate = case
    return name if rate == 0 else f"{name}, keep {rate:g}"


def against_dense(result: dict[str, Any], case: Case, length: int = ALL_LENGTHS) -> str:
    """A case at a length, with the interval of the difference from dense."""
    figure = by_length(result)[length].figure(ALL, case)
    _, low, high = figure.difference
    return (
        f"score {100 * figure.score:.0f}, dense {100 * figure.dense:.0f} (difference {100 * low:+.0f} to"
        f" {100 * high:+.0f}); {figure.kept:.2f} of the prompt kept"
    )


def first_tokens(result: dict[str, Any], case: Case) -> str:
    """The time to the first token of a case by length, as a share of dense's."""
    found = by_length(result)
    del found[ALL_LENGTHS]
    shares = (f"{comparison.figure(ALL, case).time:.2f} at {length:,}" for length, comparison in found.items())
    return f"first token / dense {', '.join(shares)} tokens"


_TIMED = (
    "*First token / dense*: of a length's prompts, by lines through {} cases that were timed alone and with cold"
    " caches, the speculator's read included."
)


def describe(result: dict[str, Any]) -> str:
    """The conditions, and what each selector is."""
    result = with_default(result)
    settings, timed = result["settings"], len(result["timings"])
    lines = [
        f"{len(result['samples'])} prompts (seed {settings['seed']}), target `{settings['target']}`, speculator"
        f" `{settings['speculator']}`, {settings['look_ahead']} look-ahead tokens, greedy decoding. Scores are from 0"
        " to 100: the mean over the families of tasks that dense can do"
        f" ({', '.join(Comparison(result).able)}). In brackets: the 95 % interval of the paired difference from dense"
        " (bootstrap). "
        + (_TIMED.format(timed) if timed else "Times were not measured.")
        + (f" {result['note']}" if "note" in result else ""),
        "",
        *(f"- *{name}*: {what}." for name, what in result["selectors"].items()),
    ]
    return "\n".join(lines)


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """A row for each length and case, and those over all lengths."""
    rows = []
    for length, comparison in by_length(result).items():
        for case in comparison.cases:
            figure = comparison.figure(ALL, case)
            _, low, high = figure.difference
            score = f"{100 * figure.score:.0f} ({100 * low:+.0f} to {100 * high:+.0f})"
            shown = f"{length:,}" if length else "all"
            time = [f"{figure.time:.2f}" if length else ""] if result["timings"] else []
            dense = f"{100 * figure.dense:.0f}"
            rows.append([shown, str(figure.n), _name(case), f"{figure.kept:.2f}", dense, score, *time])
    return ["tokens", "n", "selector", "kept", DENSE, "score", *_time_column(result)], rows


def _time_column(result: dict[str, Any]) -> list[str]:
    return ["first token / dense"] if result["timings"] else []


def plot(result: dict[str, Any], path: Path) -> None:
    """By prompt length: the difference from dense, with its interval; the kept share; and the time to the first token,
    if it was measured.

    Only of the selectors that choose the keep rate, which are the ways to serve.
    """
    found = by_length(result)
    whole = found.pop(ALL_LENGTHS)
    lengths, time = list(found), _time_column(result)
    with plots.figure(path, result, panels=2 + len(time)) as (left, *shares):
        for case in (case for case in whole.cases if not case[1]):
            asked = [length for length in lengths if case in found[length].cases]
            figures = [found[length].figure(ALL, case) for length in asked]
            means = [100 * figure.difference[0] for figure in figures]
            lows, highs = ([100 * figure.difference[end] for figure in figures] for end in (1, 2))
            errors = [np.subtract(means, lows), np.subtract(highs, means)]
            left.errorbar(asked, means, yerr=errors, capsize=3, label=_name(case))
            for axis, of in zip(shares, ("kept", "time"), strict=False):
                axis.plot(asked, [getattr(figure, of) for figure in figures], label=_name(case))
        left.axhline(0, color="black", linestyle="--", linewidth=1)
        left.set_title("points of the score: difference from dense")
        for axis, title in zip(shares, ("share of the prompt that the target reads", *time), strict=True):
            axis.set_ylim(0, 1)
            axis.set_title(title)
        for axis in (left, *shares):
            plots.prompt_axis(axis, lengths)
            axis.legend()
