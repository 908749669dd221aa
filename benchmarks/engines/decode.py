"""Decoding speed of the target: without drafts, with drafts from the speculator, with vLLM's draft_model.

Each pool runs on one core. All engines stay up during the whole run and take turns after each set of prompts, so other
load on the machine slows all modes alike. All modes with remote drafts use the same target engine; they differ in the
request's options. Speed is measured from the first token of an answer to its last, so a drafting round before the first
token does not count, neither the speculator's nor that of vLLM's draft_model.

The demo pair has two limits. Its answers are short, so the drafts that come with the selection cover most of them: with
`look_ahead=0` every draft needs a drafting round, and with `ignore_eos` the models continue after their end token. They
were not trained to agree there, unless target and speculator are the same model. And its target is small: a real pair
shows what drafts save.
"""

import asyncio
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.decode_engines import DecodeEngines, DecodeSettings, modes
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from skim_common.models.source import public_name

TITLES = {
    "plain": "plain",
    "remote": "remote",
    "remote_kept": "remote, kept prompt",
    "remote_adaptive": "remote, adaptive K",
    "draft_model": "vLLM's draft_model",
}
"""What tables and plots call the modes (`benchmarks.engines.decode_engines.MODES`)."""

MEANINGS = {
    "plain": "no drafts",
    "remote": "the speculator drafts when the target asks",
    "remote_kept": "as *remote*, but the speculator reads only the kept prompt",
    "remote_adaptive": "as *remote*, K chosen by measured acceptance and costs, 0 if drafts do not pay",
    "draft_model": "the speculator runs inside the target's engine, over the kept prompt",
}


def run(settings: DecodeSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; returns `machine`, `settings`, `modes` (see `_summary`) and `speculator_counts`.

    With several prompt lengths, `modes` and `speculator_counts` are given for each length under `by_prompt_tokens`.
    Raises SkimError if an engine does not start.
    """
    began = machine()
    blocks = asyncio.run(_run(settings, progress))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    result: dict[str, Any] = {"machine": began, "settings": vars(settings) | names}
    if len(blocks) > 1:
        return {**result, "by_prompt_tokens": {str(length): block for length, block in blocks.items()}}
    [(result["settings"]["prompt_tokens"], block)] = blocks.items()
    return {**result, **block}


async def _run(settings: DecodeSettings, progress: Progress) -> dict[int, dict[str, Any]]:
    engines = await DecodeEngines.start(settings, progress)
    blocks: dict[int, dict[str, Any]] = {}

    def report(what: str, done: float) -> None:
        progress(what, (len(blocks) + done) / len(settings.prompt_tokens))

    try:
        for length in settings.prompt_tokens:
            blocks[length] = await _measure(engines, length, report)
    finally:
        await engines.close()
    return blocks


async def _measure(engines: DecodeEngines, prompt_tokens: int, progress: Progress) -> dict[str, Any]:
    """Measure all modes in turns, with prompts of one length."""
    settings = engines.settings
    asked = {name: mode for name, mode in modes(settings.drafts).items() if name in settings.modes}
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in asked}
    before = engines.speculator.drafts.metrics()
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
        "speculator_counts": {
            name: value - before[name] for name, value in engines.speculator.drafts.metrics().items()
        },
    }


def _by_length(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The modes, by prompt length."""
    several = {length: block["modes"] for length, block in result.get("by_prompt_tokens", {}).items()}
    return several or {str(result["settings"]["prompt_tokens"]): result["modes"]}


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences, and what each mode is."""
    settings, by_length = result["settings"], _by_length(result)
    what = (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, one core per pool. "
        f"{settings['prompts']} prompts of {' or '.join(by_length)} tokens per round, {settings['batch']} at a time, "
        f"{settings['rounds']} rounds. Keep rate {settings['keep_rate']}, {settings['look_ahead']} look-ahead tokens, "
        f"up to K = {settings['drafts']} drafts per verification. "
        + ("Decoding continues after an end token." if settings["ignore_eos"] else "Decoding stops at an end token.")
    )
    what += models_and_prompts(settings)
    if all(mode["ms_per_round"] is None for modes in by_length.values() for mode in modes.values()):
        what += " No drafting round was needed: the drafts that came with the selection covered the answers."
    else:
        what += " A drafting round is the speculator's work for one request of the target."
    what += (
        " *KV*: size of the speculator's KV cache for one prompt. *Accepted*: share of the drafts that were accepted at"
        " each position."
    )
    names = dict.fromkeys(name for modes in by_length.values() for name in modes)
    return "\n".join([what, "", *(f"- *{TITLES[name]}*: {MEANINGS[name]}." for name in names)])


def models_and_prompts(settings: Mapping[str, Any]) -> str:
    """Sentences about number format and prompts where they are not those of the demo pair; they begin with a space."""
    dtype = f" Engines in {settings['dtype']}." if settings.get("dtype", "float32") != "float32" else ""
    code = (
        " The prompts are Python code, with the request to explain it." if settings.get("documents") == "code" else ""
    )
    return dtype + code


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per mode and prompt length. Columns that are empty in all rows are left out."""
    shown = [{"mode": title, **_cells(mode)} for _, title, mode in _titled_modes(result)]
    columns = [column for column in shown[0] if any(row[column] for row in shown)]
    return columns, [[row[column] for column in columns] for row in shown]


def _cells(mode: dict[str, Any]) -> dict[str, str]:
    ratio = mode["ratio_to_plain"]
    return {
        "speed / plain": f"{ratio['median']:.2f}",
        "range": f"{ratio['lowest']:.2f} to {ratio['highest']:.2f}",
        "ms per token": f"{mode['ms_per_token']:.2f}",
        "tokens per step": f"{mode['tokens_per_verify']:.2f}",
        "ms per round": _or_none(mode["ms_per_round"], "{:.1f}"),
        "KV kB": _or_none(mode["kv_bytes_per_session"], "{:.0f}", 1e3),
        "accepted": " ".join(f"{rate:.2f}".removeprefix("0") for rate in mode["acceptance_per_position"] if rate),
    }


def _titled_modes(result: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, title and figures of each mode. With several prompt lengths the title ends with the length."""
    by_length = _by_length(result)
    return [
        (name, TITLES[name] if len(by_length) == 1 else f"{TITLES[name]}, {length} tokens", mode)
        for length, modes in by_length.items()
        for name, mode in modes.items()
    ]


def _or_none(value: float | None, form: str, unit: float = 1.0) -> str:
    return "" if value is None else form.format(value / unit)


def plot(result: dict[str, Any], path: Path) -> None:
    """Speed of each mode as a multiple of plain decoding, with its range over the rounds."""
    shown = _titled_modes(result)[::-1]
    ratios = [mode["ratio_to_plain"] for _, _, mode in shown]
    medians = [ratio["median"] for ratio in ratios]
    below = [ratio["median"] - ratio["lowest"] for ratio in ratios]
    above = [ratio["highest"] - ratio["median"] for ratio in ratios]
    with plots.figure(path, result, height=0.8 + 0.4 * len(shown)) as [axes]:
        colours = [plots.COLOURS[{"plain": -1, "draft_model": 1}.get(name, 0)] for name, _, _ in shown]
        axes.barh([title for _, title, _ in shown], medians, xerr=[below, above], color=colours, capsize=3)
        axes.axvline(1, color="black", linewidth=1)
        axes.set(xlabel="tokens per second, as a multiple of plain decoding")


def _summary(runs: list[dict[str, Any]], plain: list[dict[str, Any]]) -> dict[str, Any]:
    """One mode's medians over the rounds. Ratios are formed within a round; `ratio_to_plain` also has their range.

    plain: the runs of plain decoding in the same rounds.
    """
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
        "kv_bytes_per_session": statistics.median(_all(runs, "kv_bytes")) if _all(runs, "kv_bytes") else None,
        "acceptance_per_position": [float(a / d) if d else 0.0 for a, d in zip(held, drafted, strict=True)],
        "verifications": rounds,
        "tokens": tokens,
    }


def _all(runs: list[dict[str, Any]], name: str) -> list[float]:
    return [value for run in runs for value in run[name]]
