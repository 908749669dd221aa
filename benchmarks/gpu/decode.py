"""Decoding speed of the target: without drafts, and with remote drafts at forced acceptance rates.

Models of random weights never agree, so acceptance cannot be measured here: each rate in `acceptances` is forced and
run. What is measured is the cost of a step: of the target with and without drafts, and of the speculator's drafting.
The `computed` rows follow from these costs for any acceptance a: a step gives 1 + a + ... + a^K tokens. It costs the
verification plus the drafting.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.pair import Decoded, MeasuredPair
from benchmarks.gpu.ttft import prompt_ids
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions

COMPUTED = (0.0, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


@dataclass(frozen=True)
class GpuDecodeSettings:
    """preset: a name in presets.PRESETS. drafts: K. rounds: measured rounds, after one warm-up round."""

    preset: str
    device: str
    lengths: tuple[int, ...]
    keep_rate: float = 0.2
    drafts: int = 4
    acceptances: tuple[float, ...] = (0.0, 0.6, 0.8, 1.0)
    answer_tokens: int = 128
    rounds: int = 3


async def run(pair: MeasuredPair, settings: GpuDecodeSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure. `lengths`: one entry per prompt length, with its modes, the costs of a step and the computed rows."""
    began, entries = machine(), []
    for index, length in enumerate(settings.lengths):
        report = partial(_report, progress, index, settings)
        entries.append(await _length(pair, settings, length, report))
    return {
        "machine": began,
        "settings": vars(settings),
        "memory": pair.memory(),
        "lengths": entries,
    }


def _report(progress: Progress, index: int, settings: GpuDecodeSettings, what: str) -> None:
    progress(f"{settings.lengths[index]} tokens, {what}", index / len(settings.lengths))


async def _length(
    pair: MeasuredPair, settings: GpuDecodeSettings, length: int, report: Callable[[str], None]
) -> dict[str, Any]:
    runs: dict[str, list[Decoded]] = {}
    draft_ms = []
    for round in range(settings.rounds + 1):
        report(f"round {round}")
        ids = prompt_ids(length, 7000 + round)
        kept = (await pair.skim(ids, SelectionOptions(keep_rate=settings.keep_rate))).kept
        found = await _round(pair, settings, ids, kept)
        cost = await pair.draft_ms(ids, settings.drafts)
        if round:
            draft_ms.append(cost)
            for name, decoded in found.items():
                runs.setdefault(name, []).append(decoded)
    modes = {name: _summary(decoded, runs["plain"]) for name, decoded in runs.items()}
    costs = {
        "plain_ms": _ms(runs["plain"], lambda run: run.tokens),
        "verify_ms": _ms(runs["instant"], lambda run: run.verifications),
        "draft_ms": statistics.median(draft_ms),
    }
    return {"prompt_tokens": length, "modes": modes, "costs": costs, "computed": computed(costs, settings.drafts)}


async def _round(pair: MeasuredPair, settings: GpuDecodeSettings, ids: Any, kept: KeptPrompt) -> dict[str, Decoded]:
    """Run each mode once on one kept prompt."""
    plain = await pair.plain(kept, settings.answer_tokens)
    found = {"plain": plain}
    if pair.stock:
        found["stock"] = await pair.plain(kept, settings.answer_tokens, stock=True)
    found["instant"] = await pair.drafted(ids, kept, plain.ids, settings.drafts, 0.0, instant=True)
    for rate in settings.acceptances:
        found[f"remote {rate}"] = await pair.drafted(ids, kept, plain.ids, settings.drafts, rate, instant=False)
    return found


def _ms(runs: list[Decoded], count: Any) -> float:
    return statistics.median(1e3 * run.seconds / count(run) for run in runs)


def _summary(runs: list[Decoded], plain: list[Decoded]) -> dict[str, Any]:
    speed = [run.tokens / run.seconds for run in runs]
    ratios = [own / (base.tokens / base.seconds) for own, base in zip(speed, plain, strict=True)]
    verifications = sum(run.verifications for run in runs)
    return {
        "tokens_per_second": statistics.median(speed),
        "ratio_to_plain": {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)},
        "tokens_per_verify": 1 + sum(run.accepted for run in runs) / verifications if verifications else 1.0,
        "verifications": verifications,
    }


def computed(costs: dict[str, float], drafts: int) -> list[dict[str, float]]:
    """Speed-up over plain decoding by acceptance. `speed_up`: drafting and verification take turns.

    costs: milliseconds of a plain step, a verification and a drafting round.
    """
    rows = []
    for acceptance in COMPUTED:
        tokens = sum(acceptance**k for k in range(drafts + 1))  # arXiv 2211.17192, section 3.1
        plain = tokens * costs["plain_ms"]
        rows.append(
            {
                "acceptance": acceptance,
                "tokens_per_step": tokens,
                "speed_up": plain / (costs["verify_ms"] + costs["draft_ms"]),
            }
        )
    return rows


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, the measured costs and what the modes are."""
    settings = result["settings"]
    costs = "; ".join(
        f"at {entry['prompt_tokens']:,} tokens a plain step takes {entry['costs']['plain_ms']:.1f} ms, a step that"
        f" verifies drafts {entry['costs']['verify_ms']:.1f} ms and drafting {entry['costs']['draft_ms']:.1f} ms"
        for entry in result["lengths"]
    )
    return (
        f"Preset `{settings['preset']}` with random weights, keep rate"
        f" {settings['keep_rate']}, K = {settings['drafts']} drafts per verification, one request at a time,"
        f" {settings['rounds']} rounds. Models of random weights never agree, so acceptance is forced: in `remote a`"
        " each draft is accepted with probability a. `instant` verifies drafts that cost the speculator nothing and"
        f" are all rejected. `stock` is a target started without drafting. Measured: {costs}. Rows named `computed`"
        " follow from these costs."
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per prompt length and mode, then the computed rows."""
    columns = ["tokens", "mode", "tokens/s", "x plain (range)", "tokens per verify"]
    rows = []
    for entry in result["lengths"]:
        length = f"{entry['prompt_tokens']:,}"
        for name, mode in entry["modes"].items():
            ratio = mode["ratio_to_plain"]
            spread = f"{ratio['median']:.2f} ({ratio['lowest']:.2f} to {ratio['highest']:.2f})"
            rows.append([length, name, f"{mode['tokens_per_second']:.1f}", spread, f"{mode['tokens_per_verify']:.2f}"])
        for row in entry["computed"]:
            name = f"computed, acceptance {row['acceptance']}"
            rows.append([length, name, "", f"{row['speed_up']:.2f}", f"{row['tokens_per_step']:.2f}"])
    return columns, rows


def plot(result: dict[str, Any], path: Path) -> None:
    """The computed speed-up over plain decoding by acceptance."""
    with plots.figure(path, result) as (axis,):
        for entry in result["lengths"]:
            rows = entry["computed"]
            acceptance = [row["acceptance"] for row in rows]
            label = f"{entry['prompt_tokens']:,} tokens, computed"
            axis.plot(acceptance, [row["speed_up"] for row in rows], label=label)
        axis.axhline(1, color="#555555", linewidth=1, marker="")
        axis.set_xlabel("acceptance")
        axis.set_title("decode speed over plain")
        axis.legend()
