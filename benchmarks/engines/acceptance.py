"""Acceptance of drafts by prompt length: what a drafter gains by its context.

Three drafters with the same weights draft for the same kept prompts: the speculator's session over the whole prompt, a
session over the kept prompt alone, and vLLM's draft_model, which runs inside the target over the kept prompt. Every
draft comes from the drafter, no look-ahead tokens are used. The number of drafts is fixed, so nothing is timed, and
other work on the machine does not change the result.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.engines.decode import models_and_prompts
from benchmarks.engines.decode_engines import DecodeEngines, DecodeSettings, modes
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from skim_common.models.source import public_name

TITLES = {"remote": "session over the whole prompt", "remote_kept": "session over the kept prompt"}
TITLES["draft_model"] = "vLLM's draft_model, kept prompt"


def run(settings: DecodeSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; returns `machine`, `settings` and `rows` (one per prompt length and drafter, see `_row`).

    Of the settings, `rounds`, `look_ahead` and `target_layers` are not used.
    Raises SkimError if an engine does not start.
    """
    settings = replace(settings, modes=tuple(TITLES), look_ahead=0, rounds=1, target_layers=None)
    began = machine()
    rows = asyncio.run(_run(settings, progress))
    names = {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
    return {"machine": began, "settings": vars(settings) | names, "rows": rows}


async def _run(settings: DecodeSettings, progress: Progress) -> list[dict[str, Any]]:
    engines = await DecodeEngines.start(settings, progress)
    chosen = modes(settings.drafts)
    cases = [(length, name) for length in settings.prompt_tokens for name in TITLES]
    rows = []
    try:
        for index, (length, name) in enumerate(cases):
            progress(f"prompts of {length} tokens: {TITLES[name]}", index / len(cases))
            rows.append(_row(length, name, await engines.measure(chosen[name], length, seed=1000)))
    finally:
        await engines.close()
    return rows


def _row(length: int, drafter: str, measured: dict[str, Any]) -> dict[str, Any]:
    """tokens_per_step: accepted drafts and one token, per verification. acceptance_per_position: shares of drafts."""
    drafted, accepted = (np.array(measured[f"{name}_per_position"]) for name in ("drafts", "accepted"))
    return {
        "prompt_tokens": length,
        "drafter": drafter,
        "tokens_per_step": 1 + measured["accepted"] / max(measured["rounds"], 1),
        "acceptance_per_position": (accepted / np.maximum(drafted, 1)).tolist(),
        "verifications": measured["rounds"],
    }


def describe(result: dict[str, Any]) -> str:
    """The conditions of the measurement, in sentences."""
    settings = result["settings"]
    end = "Decoding continues after an end token." if settings["ignore_eos"] else "Decoding stops at an end token."
    return (
        f"Target `{settings['target']}`, speculator `{settings['speculator']}`, {settings['prompts']} prompts per"
        f" length, keep rate {settings['keep_rate']}, always K = {settings['drafts']} drafts per verification, at most"
        f" {settings['answer_tokens']} tokens per answer, greedy. {end} No look-ahead tokens are used. *Accepted*:"
        " share of the drafts that were accepted at each position." + models_and_prompts(settings)
    )


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per prompt length and drafter."""
    columns = ["drafter", "prompt", "tokens per step", "accepted", "verifications"]
    return columns, [
        [
            TITLES[row["drafter"]],
            f"{row['prompt_tokens']:,}",
            f"{row['tokens_per_step']:.2f}",
            " ".join(f"{rate:.2f}".removeprefix("0") for rate in row["acceptance_per_position"]),
            str(row["verifications"]),
        ]
        for row in result["rows"]
    ]


def plot(result: dict[str, Any], path: Path) -> None:
    """The acceptance of the first draft, and the tokens per step, by prompt length."""
    lengths = sorted({row["prompt_tokens"] for row in result["rows"]})
    with plots.figure(path, result, panels=2) as [first, steps]:
        for drafter, title in TITLES.items():
            rows = [row for row in result["rows"] if row["drafter"] == drafter]
            x = [row["prompt_tokens"] for row in rows]
            first.plot(x, [row["acceptance_per_position"][0] for row in rows], label=title)
            steps.plot(x, [row["tokens_per_step"] for row in rows], label=title)
        for axes in (first, steps):
            plots.prompt_axis(axes, lengths)
        first.set(ylabel="acceptance of the first draft", ylim=(0, 1.02))
        steps.set(ylabel="tokens per step", ylim=(1, result["settings"]["drafts"] + 1.05))
        first.legend()
