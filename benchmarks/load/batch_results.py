"""The result of `skim bench batch`: answers, totals, a description, a table and a plot."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.conversations import Question
from benchmarks.report import plots
from benchmarks.report.statistics import in_words, spread, wilson


@dataclass(frozen=True)
class Answer:
    """One row of the output. how: as Skim ran it, such as `dense, cached`; empty for `run-batch`. kept_tokens: prompt
    tokens that the target received. cached_tokens: how many of them it found in its prefix cache.
    """

    status: int
    right: bool
    prompt_tokens: int = 0
    kept_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    how: str = ""


@dataclass(frozen=True)
class Ran:
    """One mode in one round. start_s: until the first row was accepted. rows_s: from there until the output was
    complete.
    """

    mode: str
    round: int
    start_s: float
    rows_s: float
    answers: Sequence[Answer]


def answer_of(row: Mapping[str, Any], asked: Mapping[str, tuple[Any, Question]]) -> Answer:
    """A row of the output, as an Answer. asked: by custom_id, the row of the input and its question."""
    response = row.get("response") or {}
    body, status = response.get("body"), int(response.get("status_code") or 0)
    if status != 200 or not isinstance(body, Mapping) or row.get("error"):
        return Answer(status, False)
    _, question = asked[row["custom_id"]]
    usage, headers = body["usage"], response.get("headers") or {}
    prompt_tokens = int(usage["prompt_tokens"])
    mode, reason = headers.get("x-skim-mode", ""), headers.get("x-skim-reason", "").partition(";")[0]
    return Answer(
        status,
        question.is_right(body["choices"][0]["message"]["content"] or ""),
        prompt_tokens,
        int(headers.get("x-skim-kept-tokens", prompt_tokens)),
        (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        int(usage["completion_tokens"]),
        ", ".join(filter(None, (mode, reason))),
    )


def totals_of(runs: Sequence[Ran], baseline: str) -> list[dict[str, Any]]:
    """One entry per mode. rows_per_s, start_s, whole_s: over the rounds. over_baseline: rows per second divided by
    those of the baseline in the same round. The other values are of all rounds together. prompt_tokens, kept_tokens,
    cached_tokens: of answered rows. how: how many rows ran so.
    """
    theirs = {ran.round: _rate(ran) for ran in runs if ran.mode == baseline}
    totals = []
    for mode in dict.fromkeys(ran.mode for ran in runs):
        chosen = [ran for ran in runs if ran.mode == mode]
        answers = [answer for ran in chosen for answer in ran.answers]
        right = sum(answer.right for answer in answers)
        low, high = wilson(right / len(answers), len(answers))
        names = ("prompt_tokens", "kept_tokens", "cached_tokens", "answer_tokens")
        totals.append(
            {
                "mode": mode,
                "rows_per_s": spread(map(_rate, chosen)),
                "over_baseline": spread(_rate(ran) / theirs[ran.round] for ran in chosen),
                "start_s": spread(ran.start_s for ran in chosen),
                "whole_s": spread(ran.start_s + ran.rows_s for ran in chosen),
                "rows": len(answers),
                "failed": sum(answer.status != 200 for answer in answers),
                "right": right,
                "low": low,
                "high": high,
                **{name: sum(getattr(answer, name) for answer in answers) for name in names},
                "how": dict(Counter(answer.how for answer in answers if answer.how)),
            }
        )
    return totals


def _rate(ran: Ran) -> float:
    """Answered rows per second."""
    return sum(answer.status == 200 for answer in ran.answers) / ran.rows_s


def describe(result: dict[str, Any]) -> str:
    """The conditions, the modes, and how Skim ran the rows."""
    settings = result["settings"]
    count = settings["documents"] * settings["questions"]
    lines = [
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, {settings['dtype']}. {count} rows:"
        f" {settings['questions']} questions about each of {settings['documents']} documents of"
        f" {settings['document_tokens']:,} tokens, shuffled; at most {settings['answer_tokens']} tokens per answer,"
        f" greedy. Each KV cache holds {settings['held']} documents. Keep rate {settings['keep_rate']}."
        f" {settings['rounds']} rounds; medians over the rounds with their range. Every run has engines of its own:"
        " *start* is the time until the first row is accepted, *whole* that from the start of the command until its"
        " output is complete; rows/s counts the time between. *Kept* and *cached*: shares of the prompt tokens that the"
        " target received, and that it found in its prefix cache.",
        "",
        *(f"- *{mode}*: {what}." for mode, what in result["modes"].items()),
        "",
    ]
    for total in result["totals"]:
        if total["how"]:
            told = "; ".join(f"{how} ({count})" for how, count in total["how"].items())
            lines.append(f"- Rows of *{total['mode']}* by mode and reason: {told}.")
    return "\n".join(lines).rstrip("\n")


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per mode."""
    columns = ["mode", "rows/s", "/ run-batch", "start s", "whole s", "right", "failed", "kept", "cached"]
    rows = []
    for total in result["totals"]:
        prompt = max(total["prompt_tokens"], 1)
        rows.append(
            [
                total["mode"],
                f"{total['rows_per_s']['median']:.3g}",
                in_words(total["over_baseline"]),
                f"{total['start_s']['median']:.1f}",
                f"{total['whole_s']['median']:.1f}",
                f"{total['right']} of {total['rows']} ({total['low']:.0%} to {total['high']:.0%})",
                str(total["failed"]),
                f"{total['kept_tokens'] / prompt:.0%}",
                f"{total['cached_tokens'] / prompt:.0%}",
            ]
        )
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: rows per second of each round. Right: the whole time, with the start of the engines apart."""
    totals = result["totals"][::-1]
    modes = [total["mode"] for total in totals]
    with plots.figure(path, result, panels=2, height=1.4 + 0.45 * len(modes)) as [rates, times]:
        rates.barh(modes, [total["rows_per_s"]["median"] for total in totals], color=plots.COLOURS[0])
        for total in totals:
            one = total["rows_per_s"]
            rates.plot([one["lowest"], one["highest"]], [total["mode"]] * 2, color="black", marker="|")
        starts = [total["start_s"]["median"] for total in totals]
        rest = [total["whole_s"]["median"] - start for total, start in zip(totals, starts, strict=True)]
        times.barh(modes, starts, color=plots.COLOURS[6], label="start")
        times.barh(modes, rest, left=starts, color=plots.COLOURS[0], label="rows")
        rates.set(xlabel="rows per second")
        times.set(xlabel="seconds")
        times.set_yticks(times.get_yticks(), labels=[""] * len(modes))
        times.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=2)
        for axes in (rates, times):
            axes.grid(axis="y", visible=False)
