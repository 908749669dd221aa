"""The section of `python -m tests.soak.engines --out FILE`: real engines, disturbed channel, full KV cache."""

from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.report import plots
from benchmarks.report.soak import FAILED

FINE = ("answered", "left")
"""The kinds of `tests.soak.load.Seen` that are no failure."""

WITHOUT_DRAFTS = {"timeout": "no answer in time", "unreachable": "unreachable", "breaker": "not asked, after failures"}
"""Reasons of target_service.drafting.exchange.FALLBACKS that a disturbed channel brings."""


def describe(result: dict[str, Any]) -> str:
    """Load and answers, in sentences."""
    settings, rounds = result["settings"], result["rounds"]
    answers: Counter[str] = sum((Counter(found["answers"]) for found in rounds), Counter())
    seen = [f"{found['case']}: {finding}" for found in rounds for finding in found["findings"]]
    return (
        f"The demo pair on vLLM, in float32, {settings['rate_per_s']:.1f} requests per second: {settings['load']:.0%}"
        f" of what it answered without a pause. {len(rounds)} rounds in {settings['minutes']:g} minutes. Each answer is"
        f" compared with that of the undisturbed deployment. Of {sum(answers.values()):,} requests"
        f" {answers['answered']:,} had the right answer, {answers['wrong']:,} a wrong one;"
        f" {sum(answers[kind] for kind in FAILED):,} failed, {answers['hung']:,} had no end, and {answers['left']:,}"
        " clients left. It is a finding, too, if after a round the target gets no drafts, or a session or a block of"
        f" the KV cache is left. Findings: {'; '.join(seen) or 'none'}. *Drafts*: accepted tokens. *Steps without"
        " drafts*: steps of requests for which the speculator was asked in vain, or not asked. *Preempted*: requests"
        " that vLLM stopped and began again: the KV cache was full."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per case."""
    columns = ["case", "rounds", "right answers", "failed, wrong or hung", "slowest, s", "drafts"]
    columns += ["steps without drafts", "preempted"]
    rows = []
    for case, rounds in _by_case(result).items():
        bad = sum(count for found in rounds for kind, count in found["answers"].items() if kind not in FINE)
        numbers = [len(rounds), sum(found["answers"].get("answered", 0) for found in rounds), bad]
        rows.append(
            [
                case,
                *map(str, numbers),
                f"{max(found['slowest_s'] for found in rounds):.1f}",
                f"{sum(found['accepted'] for found in rounds):,}",
                f"{sum(sum(found['fallbacks'][why] for why in WITHOUT_DRAFTS) for found in rounds):,}",
                str(sum(found["preempted"] for found in rounds)),
            ]
        )
    return columns, rows


def _by_case(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {}
    for one in result["rounds"]:
        found.setdefault(one["case"], []).append(one)
    return dict(sorted(found.items()))


def plot(result: dict[str, Any], path: Path) -> None:
    """By case, per round: accepted drafts, and steps without drafts by their reason."""
    cases = _by_case(result)
    bars = {"drafts accepted": [[found["accepted"] for found in rounds] for rounds in cases.values()]}
    for why, words in WITHOUT_DRAFTS.items():
        bars[words] = [[found["fallbacks"][why] for found in rounds] for rounds in cases.values()]
    names = [case.replace(" by ", "\nby ").replace(": ", ":\n") for case in cases]
    with plots.figure(path, result, height=3.2) as [axes]:
        left = [0.0] * len(names)
        for label, counts in bars.items():
            means = [sum(each) / len(each) for each in counts]
            axes.barh(names, means, left=left, label=label)
            left = [before + mean for before, mean in zip(left, means, strict=True)]
        axes.set(xlabel="accepted drafts, and steps without drafts; per round")
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
