"""Tokens per second of the target's decode: plain, with the speculator drafting remotely, with vLLM's draft_model.

One core is pinned to each pool. All engines live through the whole run and take turns, prompt set by prompt set, so
that whatever else the machine does slows all modes alike. The drafting modes verify on the same target engine and
differ by what each request asks for. Speeds are from an answer's first token to its last: a drafting round before the
first token is not in them, neither of the speculator nor of vLLM's draft_model.

The demo pair's answers are short, so the drafts that came with the selection cover most of them: without `look_ahead`,
every draft needs a round; `ignore_eos` makes the models talk on past their end token, where they were never trained to
agree, unless the target's own folder is the speculator's too. The demo target is small as well: `target_layers` makes
its steps cost what a deeper model's cost (benchmarks/padded_target.py).
"""

import asyncio
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import plots
from benchmarks.decode_engines import DecodeSettings, Engines, modes
from benchmarks.machine import machine
from benchmarks.padded_target import pad_target
from benchmarks.progress import Progress, silent


def run(settings: DecodeSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure: `machine`, `settings`, and `modes` (see `_summary`) and `speculator_counts`.

    The latter two are under `by_prompt_tokens` where there are several lengths. Raises SkimError if an engine does not
    start or the target cannot be padded.
    """
    with tempfile.TemporaryDirectory(prefix="skim-target-") as folder:
        padded: dict[str, Any] = {}
        if settings.target_layers is not None:
            parameters = pad_target(Path(settings.target), Path(folder), settings.target_layers)
            padded = {"target_is_padded": True, "target_parameters": parameters}
        began = machine()
        blocks = asyncio.run(_run(replace(settings, target=folder) if padded else settings, progress))
    names = {"target": Path(settings.target).name, "speculator": Path(settings.speculator).name}
    result: dict[str, Any] = {"machine": began, "settings": vars(settings) | names | padded}
    if len(blocks) > 1:
        return {**result, "by_prompt_tokens": {str(length): block for length, block in blocks.items()}}
    [(result["settings"]["prompt_tokens"], block)] = blocks.items()
    return {**result, **block}


async def _run(settings: DecodeSettings, progress: Progress) -> dict[int, dict[str, Any]]:
    engines = await Engines.start(settings, progress)
    blocks: dict[int, dict[str, Any]] = {}

    def tell(what: str, done: float) -> None:
        progress(what, (len(blocks) + done) / len(settings.prompt_tokens))

    try:
        for length in settings.prompt_tokens:
            blocks[length] = await _measure(engines, length, tell)
    finally:
        await engines.close()
    return blocks


async def _measure(engines: Engines, prompt_tokens: int, progress: Progress) -> dict[str, Any]:
    """All modes in turns, with prompts of one length."""
    settings = engines.settings
    asked = {name: mode for name, mode in modes(settings.drafts).items() if name in {"plain", *settings.modes}}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    before = engines.service.metrics()
    for index in range(settings.rounds + 1):
        for turn, (name, mode) in enumerate(asked.items()):
            what = f"round {index} of {settings.rounds}" if index else "warming up"
            done = (index + turn / len(asked)) / (settings.rounds + 1)
            progress(f"prompts of {prompt_tokens} tokens, {what}: {name}", done)
            measured = await engines.measure(mode, prompt_tokens, seed=1000 * index)
            if index:
                runs[name].append(measured)
    return {
        "modes": {name: _summary(results, runs["plain"]) for name, results in runs.items()},
        "speculator_counts": {name: value - before[name] for name, value in engines.service.metrics().items()},
    }


def _by_length(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The modes of each length of prompts."""
    several = {length: block["modes"] for length, block in result.get("by_prompt_tokens", {}).items()}
    return several or {str(result["settings"]["prompt_tokens"]): result["modes"]}


def describe(result: dict[str, Any]) -> str:
    """What was measured, in a sentence or two."""
    settings, by_length = result["settings"], _by_length(result)
    what = (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, {settings['prompts']} prompts of "
        f"{' or '.join(by_length)} tokens per round, {settings['rounds']} rounds, {settings['batch']} at a time, "
        f"keep rate {settings['keep_rate']}, {settings['look_ahead']} look-ahead tokens, K = {settings['drafts']}, "
        "one core per pool, " + ("decoding on past the answers' end." if settings["ignore_eos"] else "whole answers.")
    )
    if settings.get("target_is_padded"):
        what += (
            f" The target is padded to {settings['target_layers']} layers ({settings['target_parameters'] / 1e6:.0f} "
            "million parameters) that add nothing: its answers are the same and its steps cost more."
        )
    if all(mode["ms_per_round"] is None for modes in by_length.values() for mode in modes.values()):
        what += " No drafting round was needed: the drafts that came with the selection covered the answers."
    else:
        what += " A round is the speculator's work on one request's drafts; `ready ahead` were made before it came."
    return what


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, a mode each, for each length of prompts where there are several; empty columns are left out."""
    shown = [{"mode": name, **_cells(mode)} for name, mode in _named_modes(result).items()]
    columns = [column for column in shown[0] if any(row[column] for row in shown)]
    return columns, [[row[column] for column in columns] for row in shown]


def _cells(mode: dict[str, Any]) -> dict[str, str]:
    ratio = mode["ratio_to_plain"]
    return {
        "x plain": f"{ratio['median']:.2f}",
        "range": f"{ratio['lowest']:.2f} to {ratio['highest']:.2f}",
        "ms per token": f"{mode['ms_per_token']:.2f}",
        "tokens per verify": f"{mode['tokens_per_verify']:.2f}",
        "ms per round": _or_none(mode["ms_per_round"], "{:.1f}"),
        "ready ahead": _or_none(mode["ahead_hit_rate"], "{:.0%}"),
        "KV kB": _or_none(mode["kv_bytes_per_session"], "{:.0f}", 1e3),
        "accepted": " ".join(f"{rate:.2f}".removeprefix("0") for rate in mode["acceptance_per_position"] if rate),
    }


def _named_modes(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The modes, named with their prompts' length where there are several."""
    by_length = _by_length(result)
    if len(by_length) == 1:
        return dict(*by_length.values())
    return {f"{name}, {length} tokens": mode for length, modes in by_length.items() for name, mode in modes.items()}


def _or_none(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else form.format(value / unit)


def plot(result: dict[str, Any], path: Path) -> None:
    """Speed of each mode as a multiple of plain decoding, with its extremes over the rounds."""
    shown = _named_modes(result)
    names = list(shown)[::-1]
    ratios = [shown[name]["ratio_to_plain"] for name in names]
    medians = [ratio["median"] for ratio in ratios]
    below = [ratio["median"] - ratio["lowest"] for ratio in ratios]
    above = [ratio["highest"] - ratio["median"] for ratio in ratios]
    with plots.figure(path, result, height=0.8 + 0.4 * len(names)) as [axes]:
        colours = [
            plots.COLOURS[-1 if name.startswith("plain") else 1 if name.startswith("draft_model") else 0]
            for name in names
        ]
        axes.barh(names, medians, xerr=[below, above], color=colours, capsize=3)
        axes.axvline(1, color="black", linewidth=1)
        axes.set(xlabel="tokens per second, as a multiple of plain decoding")


def _summary(runs: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds; `ratio_to_plain` is the median of the rounds' own ratios, with its extremes."""
    ratios = [run["tokens_per_second"] / base["tokens_per_second"] for run, base in zip(runs, plain, strict=True)]
    rounds, accepted = (sum(run[name] for run in runs) for name in ("rounds", "accepted"))
    tokens = sum(run["tokens"] for run in runs)
    rounds_ms = _all(runs, "round_ms")
    drafted = np.sum([run["drafts_per_position"] for run in runs], axis=0)
    held = np.sum([run["accepted_per_position"] for run in runs], axis=0)
    return {
        "tokens_per_second": statistics.median(run["tokens_per_second"] for run in runs),
        "ms_per_token": statistics.median(run["ms_per_token"] for run in runs),
        "ratio_to_plain": {"median": statistics.median(ratios), "lowest": min(ratios), "highest": max(ratios)},
        "tokens_per_verify": 1 + accepted / rounds if rounds else 1.0,
        "ms_per_round": statistics.median(rounds_ms) if rounds_ms else None,
        "ahead_hit_rate": sum(run["ahead_hits"] for run in runs) / len(rounds_ms) if rounds_ms else None,
        "kv_bytes_per_session": statistics.median(_all(runs, "kv_bytes")) if _all(runs, "kv_bytes") else None,
        "acceptance_per_position": [float(a / d) if d else 0.0 for a, d in zip(held, drafted, strict=True)],
        "verifications": rounds,
        "tokens": tokens,
    }


def _all(runs: list[dict[str, Any]], name: str) -> list[float]:
    return [value for run in runs for value in run[name]]
