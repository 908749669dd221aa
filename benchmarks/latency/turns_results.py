"""The result of `skim bench turns`: rows, totals, a description, a table and a plot."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import plots
from benchmarks.report.statistics import in_words, spread, wilson


@dataclass(frozen=True)
class Answered:
    """One turn of one mode. kept_tokens: what the target received. target_cached: how many of them it found in its
    prefix cache. speculator_cached: None if the speculator read nothing. right: None if the answer is not judged.
    parts: milliseconds by part, from `Server-Timing`; empty for the stock server.
    """

    mode: str
    round: int
    turn: int
    ttft_ms: float
    prompt_tokens: int
    kept_tokens: int
    target_cached: int
    speculator_cached: int | None
    reason: str
    right: bool | None
    parts: Mapping[str, float] = field(default_factory=dict)


def rows_of(answered: Sequence[Answered]) -> list[dict[str, Any]]:
    """One row per turn (from 1 on) and mode, with medians over the rounds.

    over_dense: the mode's time to first token divided by that of dense in the same round: `median`, `lowest`,
    `highest`. target_computed, speculator_computed: prompt tokens that each pool computed. found: share of the
    previous turn's kept prompt that the target found in its prefix cache; None in the first turn. reasons: how often
    each came (`benchmarks.harness.chat_client.Timed`). right, judged: answers. parts_ms: Skim's own account of the time
    to first token, medians by part.
    """
    rows = []
    for turn in sorted({a.turn for a in answered}):
        for mode in dict.fromkeys(a.mode for a in answered):
            chosen = _of(answered, mode, turn)
            kept = [a.kept_tokens for a in chosen]
            read = [a.prompt_tokens - a.speculator_cached for a in chosen if a.speculator_cached is not None]
            rows.append(
                {
                    "turn": turn + 1,
                    "mode": mode,
                    "ttft_ms": spread(a.ttft_ms for a in chosen),
                    "over_dense": spread(_ratios(chosen, _of(answered, "dense", turn))),
                    "prompt_tokens": statistics.median(a.prompt_tokens for a in chosen),
                    "kept_tokens": statistics.median(kept),
                    "target_computed": statistics.median(a.kept_tokens - a.target_cached for a in chosen),
                    "speculator_computed": statistics.median(read) if read else 0,
                    "found": _found(chosen, _of(answered, mode, turn - 1)),
                    "reasons": dict(Counter(a.reason for a in chosen)),
                    "parts_ms": _parts(chosen),
                    **_right(chosen),
                }
            )
    return rows


def _parts(chosen: Sequence[Answered]) -> dict[str, float]:
    names = dict.fromkeys(name for a in chosen for name in a.parts)
    return {name: statistics.median(a.parts.get(name, 0.0) for a in chosen) for name in names}


def totals_of(answered: Sequence[Answered]) -> list[dict[str, Any]]:
    """One entry per mode. sum_ms, over_dense: the sum of a conversation's times to first token. later_over_dense: the
    ratios of the turns from the second on, all rounds. found: as in `rows_of`, from the second turn on. low, high: the
    95 % interval of the share of right answers, if they were judged.
    """
    totals = []
    for mode in dict.fromkeys(a.mode for a in answered):
        chosen = [a for a in answered if a.mode == mode]
        dense = [a for a in answered if a.mode == "dense"]
        later, later_dense = ([a for a in part if a.turn] for part in (chosen, dense))
        sums, dense_sums = _sums(chosen), _sums(dense)
        told = _right(chosen)
        low, high = wilson(told["right"] / told["judged"], told["judged"]) if told["judged"] else (None, None)
        shares = [
            s for t in sorted({a.turn for a in later}) if (s := _found(_of(chosen, mode, t), _of(chosen, mode, t - 1)))
        ]
        totals.append(
            {
                "mode": mode,
                "sum_ms": spread(sums.values()),
                "over_dense": spread(sums[index] / dense_sums[index] for index in sums),
                "later_over_dense": spread(_ratios(later, later_dense)) if later else None,
                "found": statistics.mean(shares) if shares else None,
                **told,
                "low": low,
                "high": high,
            }
        )
    return totals


def _of(answered: Iterable[Answered], mode: str, turn: int) -> list[Answered]:
    return [a for a in answered if (a.mode, a.turn) == (mode, turn)]


def _ratios(over: Sequence[Answered], under: Sequence[Answered]) -> list[float]:
    by_place = {(a.round, a.turn): a.ttft_ms for a in under}
    return [a.ttft_ms / by_place[a.round, a.turn] for a in over]


def _sums(answered: Iterable[Answered]) -> dict[int, float]:
    sums: dict[int, float] = {}
    for a in answered:
        sums[a.round] = sums.get(a.round, 0.0) + a.ttft_ms
    return sums


def _found(chosen: Sequence[Answered], before: Sequence[Answered]) -> float | None:
    held = {a.round: a.kept_tokens for a in before}
    shares = [min(1.0, a.target_cached / held[a.round]) for a in chosen if a.round in held]
    return statistics.mean(shares) if shares else None


def _right(chosen: Sequence[Answered]) -> dict[str, int]:
    judged = [a.right for a in chosen if a.right is not None]
    return {"right": sum(judged), "judged": len(judged)}


def describe(result: dict[str, Any]) -> str:
    """The conditions, the modes, and for each mode the sums, the later turns, the cache and the answers."""
    settings = result["settings"]
    models = settings["shapes"] or f" `{settings['target']}` and `{settings['speculator']}`"
    apart = (
        " One system at a time is in memory, so the rounds of both are not interleaved." if settings["apart"] else ""
    )
    lines = [
        f"Target and speculator{models}, {settings['dtype']}. Conversations of {settings['turns']} turns about a"
        f" document of {settings['document_tokens']:,} tokens; keep rate {settings['keep_rate']}."
        f" {settings['rounds']} rounds, one request at a time.{apart} Medians over the rounds, ratios to dense within a"
        " round, with their range. *Found*: share of the previous turn's kept prompt that the target takes from its"
        ' prefix cache, from the second turn on. *Speculator computes*: "windows" where its cache has the text of all'
        " windows and it reads the question in each. *Reason*: how Skim ran a turn, and why (`x-skim-reason`).",
        "",
        *(f"- *{mode}*: {what}." for mode, what in result["modes"].items()),
        "",
        *(_told(total) for total in result["totals"] if total["mode"] != "dense"),
    ]
    return "\n".join(lines)


def _told(total: dict[str, Any]) -> str:
    """One mode's totals in a sentence."""
    parts = [f"- {total['mode']}: sum of the times to first token / dense {in_words(total['over_dense'])}"]
    if total["later_over_dense"]:
        parts.append(f"turns from the second on / dense {in_words(total['later_over_dense'])}")
    if total["found"] is not None:
        parts.append(f"found {total['found']:.0%}")
    if total["judged"]:
        parts.append(f"right {total['right']} of {total['judged']} ({total['low']:.1%} to {total['high']:.1%})")
    return ", ".join(parts) + "."


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per turn and mode, then the sums."""
    columns = ["turn", "mode", "first token ms", "/ dense", "prompt", "kept", "target computes", "speculator computes"]
    columns.append("reason")
    judged = any(row["judged"] for row in result["rows"])
    columns += ["right"] if judged else []
    rows = [
        [
            str(row["turn"]),
            row["mode"],
            f"{row['ttft_ms']['median']:,.0f}",
            in_words(row["over_dense"]),
            *(f"{row[name]:,.0f}" for name in ("prompt_tokens", "kept_tokens", "target_computed")),
            # Windows that come from the cache have more cached tokens than the prompt: each begins with the template.
            f"{row['speculator_computed']:,.0f}" if row["speculator_computed"] >= 0 else "windows",
            "; ".join(row["reasons"]),
            *([f"{row['right']} of {row['judged']}"] if judged else []),
        ]
        for row in result["rows"]
    ]
    for total in result["totals"]:
        right = [f"{total['right']} of {total['judged']}"] if judged else []
        sum_ms = f"{total['sum_ms']['median']:,.0f}"
        rows.append(["sum", total["mode"], sum_ms, in_words(total["over_dense"]), *[""] * 5, *right])
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """Left: time to first token by turn. Right: prompt tokens that the target computes, by turn."""
    with plots.figure(path, result, panels=2) as [times, computed]:
        for mode in result["modes"]:
            rows = [row for row in result["rows"] if row["mode"] == mode]
            at = [row["turn"] for row in rows]
            times.plot(at, [row["ttft_ms"]["median"] / 1e3 for row in rows], label=mode)
            computed.plot(at, [max(1, row["target_computed"]) for row in rows], label=mode)
        times.set(ylabel="seconds to first token")
        computed.set(ylabel="tokens that the target computes")
        for axes in (times, computed):
            plots.log_values(axes)
            axes.set(xlabel="turn")
            axes.set_xticks(range(1, result["settings"]["turns"] + 1))
        times.legend()
