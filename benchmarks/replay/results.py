"""The result of `skim bench replay`: times to first token by system and by cached share."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import plots
from benchmarks.report.statistics import in_words, spread

SYSTEMS = ("stock", "skim")
BINS = 10


@dataclass(frozen=True, slots=True)
class Replayed:
    """One request of a replay. system: stock or skim. round: from 1 on. number: its place in the trace. kept_tokens:
    what the target received. target_cached: how many of them it found in its prefix cache. reason: as in
    `benchmarks.harness.chat_client.Timed`.
    """

    system: str
    round: int
    number: int
    ttft_ms: float
    prompt_tokens: int
    kept_tokens: int
    target_cached: int
    reason: str


def summary(replayed: Sequence[Replayed], shares: Sequence[float]) -> dict[str, Any]:
    """`systems`: the times of each system. `ratio`: Skim's mean divided by that of stock, by round. `bins`: for each
    tenth of cached share with requests, the same. `reasons`: the same for the requests that Skim ran in each mode for
    each reason (`x-skim-reason`), without rounds.

    shares: for each request, the share of its prompt that an unlimited prefix cache would hold.
    """
    return {
        "systems": {system: _times(_of(replayed, system)) for system in SYSTEMS},
        "ratio": _ratio(replayed),
        "bins": [
            {"from": index / BINS, "to": (index + 1) / BINS, **_bin([r for r in replayed if r.number in numbers])}
            for index in range(BINS)
            if (numbers := {n for n, share in enumerate(shares) if min(int(share * BINS), BINS - 1) == index})
        ],
        "reasons": [_reason(replayed, reason) for reason in sorted({r.reason for r in _of(replayed, "skim")})],
    }


def _reason(replayed: Sequence[Replayed], reason: str) -> dict[str, Any]:
    asked = {(r.round, r.number) for r in _of(replayed, "skim") if r.reason == reason}
    means = _means([r for r in replayed if (r.round, r.number) in asked])
    return {"reason": reason, "requests": len(asked), **means, "ratio": means["skim_ms"] / means["stock_ms"]}


def _means(replayed: Sequence[Replayed]) -> dict[str, float]:
    return {f"{system}_ms": float(np.mean([r.ttft_ms for r in _of(replayed, system)])) for system in SYSTEMS}


def _bin(replayed: Sequence[Replayed]) -> dict[str, Any]:
    return {"requests": len({r.number for r in replayed}), **_means(replayed), "ratio": _ratio(replayed)}


def _ratio(replayed: Sequence[Replayed]) -> dict[str, float]:
    rounds = sorted({r.round for r in replayed})
    means = [[np.mean([r.ttft_ms for r in _of(replayed, s) if r.round == index]) for s in SYSTEMS] for index in rounds]
    return spread(float(skim / stock) for stock, skim in means)


def _times(replayed: Sequence[Replayed]) -> dict[str, Any]:
    times = [r.ttft_ms for r in replayed]
    middle, high = (float(np.percentile(times, q)) for q in (50, 99))
    return {
        "mean_ms": float(np.mean(times)),
        "p50_ms": middle,
        "p99_ms": high,
        **{name: sum(getattr(r, name) for r in replayed) for name in ("prompt_tokens", "kept_tokens", "target_cached")},
    }


def _of(replayed: Iterable[Replayed], system: str) -> list[Replayed]:
    return [r for r in replayed if r.system == system]


def describe(result: dict[str, Any]) -> str:
    """The conditions, both systems' times and Skim's reasons."""
    settings, stock, skim = result["settings"], *(result["systems"][system] for system in SYSTEMS)
    held = result["kv_tokens"]
    return (
        f"{result['about']} {settings['requests']:,} requests of the trace `{settings['trace']}` in"
        f" {settings['seconds']:,.0f} s, {settings['block_tokens']} tokens for each block of 512; the longest prompt"
        f" has {result['longest']:,} tokens. Keep rate {settings['keep_rate']}, answers of at most"
        f" {settings['answer_tokens']} tokens. The stock server's KV cache holds {held['stock']:,} tokens; in the same"
        f" memory Skim's target holds {held['target']:,} and its speculator {held['speculator']:,}. Mean time to first"
        f" token, Skim / stock: {in_words(result['ratio'])}. Tokens that the target computed: stock"
        f" {stock['prompt_tokens'] - stock['target_cached']:,}, Skim {skim['kept_tokens'] - skim['target_cached']:,}."
        " *Cached share*: the share of a prompt that an unlimited prefix cache would hold. The last rows"
        " are by how Skim ran a request, and why (`x-skim-reason`); the requests of all rounds are counted."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: mean, median and 99th percentile of all requests, then the means by cached share and reason."""
    columns = ["requests", "number", "stock ms", "Skim ms", "Skim / stock"]
    systems = result["systems"]
    number = f"{result['settings']['requests']:,}"
    rows = [["all, mean", number, *_cells(systems, "mean_ms"), in_words(result["ratio"])]]
    for what, name in (("all, median", "p50_ms"), ("all, 99th percentile", "p99_ms")):
        ratio = systems["skim"][name] / systems["stock"][name]
        rows.append([what, number, *_cells(systems, name), f"{ratio:.2f}"])
    for found in result["bins"]:
        what = f"cached {found['from']:.0%} to {found['to']:.0%}, mean"
        rows.append([what, f"{found['requests']:,}", *_mean_cells(found), in_words(found["ratio"])])
    for found in result["reasons"]:
        rows.append(
            [f"{found['reason']}, mean", f"{found['requests']:,}", *_mean_cells(found), f"{found['ratio']:.2f}"]
        )
    return columns, rows


def _cells(systems: dict[str, Any], name: str) -> list[str]:
    return [f"{systems[system][name]:,.0f}" for system in SYSTEMS]


def _mean_cells(found: dict[str, Any]) -> list[str]:
    return [f"{found[f'{system}_ms']:,.0f}" for system in SYSTEMS]


def plot(result: dict[str, Any], path: Path) -> None:
    """Mean time to first token by cached share."""
    with plots.figure(path, result, height=4.4) as [times]:
        at = [100 * (found["from"] + found["to"]) / 2 for found in result["bins"]]
        for system, label in zip(SYSTEMS, ("stock vLLM", "Skim"), strict=True):
            times.plot(at, [found[f"{system}_ms"] / 1e3 for found in result["bins"]], label=label)
        times.set(xlabel="% of the prompt that an unlimited cache would hold", ylabel="seconds to first token, mean")
        times.set(xlim=(0, 100))
        plots.log_values(times)
        times.legend()
