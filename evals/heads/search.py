"""The run behind `skim heads`: reads generated prompts with the speculator, and makes its head profile."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from benchmarks.report.progress import Progress, silent
from evals.heads.choose import ALONE, KEEP_RATES, Candidate, Reading, all_kept, choose, kept
from evals.heads.prompts import TASKS, EvidencePrompt, make_prompts
from evals.run.ask import load_tokenizer
from evals.selection.chunk_recall import importance_of
from kv_transfer.messages import Int32Array
from skim_common.models.fingerprint import model_fingerprint
from skim_common.models.info import inspect_model
from skim_common.models.source import public_name
from speculator_service.engine import SpeculatorEngine
from speculator_service.scoring.heads import HeadProfile


class Reader(SpeculatorEngine, Protocol):
    """An engine that tells what each head looks at: `speculator_service.vllm_backend.engine.VllmSpeculator`."""

    async def head_masses(
        self, request_id: str, token_ids: Int32Array, question: tuple[int, int] | None
    ) -> tuple[list[tuple[int, int]], torch.Tensor]: ...


@dataclass(frozen=True)
class SearchSettings:
    """prompts: of each task, at least 2, because each half judges the heads that the other half ranks."""

    model: str
    prompt_tokens: int = 1024
    prompts: int = 6
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)


def run(settings: SearchSettings, progress: Progress = silent) -> HeadProfile:
    """Find the profile with the vLLM engine. Raises SkimError."""
    from speculator_service.vllm_backend.engine import VllmSpeculator

    fingerprint = model_fingerprint(inspect_model(settings.model, engine="vllm"))
    tokenizer = load_tokenizer(settings.model)
    prompts = list(make_prompts(tokenizer, settings.prompt_tokens, settings.prompts, settings.seed))
    progress("starting the speculator", 0)
    engine = VllmSpeculator(settings.model, **settings.options)
    try:
        chosen, made = asyncio.run(search(engine, prompts, progress))
    finally:
        engine.close()
    made |= {"seed": settings.seed, "prompt_tokens": settings.prompt_tokens, "prompts_per_task": settings.prompts}
    return HeadProfile(
        model=public_name(settings.model),
        fingerprint=fingerprint,
        question=chosen.question,
        last=chosen.last,
        heads=chosen.heads,
        made={"by": "skim heads", "tasks": list(TASKS), **made},
    )


async def search(
    engine: Reader, prompts: Sequence[EvidencePrompt], progress: Progress = silent
) -> tuple[Candidate, dict[str, Any]]:
    """The best candidate, and of how many prompts its rule and the default scores keep all evidence, by keep rate."""
    halves: tuple[list[Reading], list[Reading]] = ([], [])
    by_attention = []
    names: list[tuple[int, int]] = []
    for number, prompt in enumerate(prompts):
        progress(f"reading prompt {number + 1} of {len(prompts)}", number / len(prompts))
        names, masses = await engine.head_masses(f"heads-{number}", prompt.rendered.token_ids, prompt.question)
        halves[number // len(TASKS) % 2].append(Reading(prompt, masses.numpy()))
        by_attention.append(kept(prompt, await importance_of(engine, f"attention-{number}", prompt.rendered, ALONE)))
    progress("choosing the heads", 1)
    chosen, shares = choose(names, halves)
    return chosen, {
        "prompts": len(shares),
        "keep_rates": list(KEEP_RATES),
        "all_evidence_kept": _by_rate(shares),
        "all_evidence_kept_by_attention": _by_rate(by_attention),
    }


def _by_rate(shares: Sequence[Sequence[float]]) -> list[int]:
    return [all_kept([[share] for share in of_rate]) for of_rate in np.transpose(shares).tolist()]


def describe(profile: HeadProfile) -> str:
    """The profile in a few sentences."""
    heads = ", ".join(f"({head.layer}, {head.head}) {head.weight:g}" for head in profile.heads)
    made = profile.made
    rates = ", ".join(f"{rate:g}" for rate in made["keep_rates"])
    counts, others = (
        ", ".join(map(str, made[name])) for name in ("all_evidence_kept", "all_evidence_kept_by_attention")
    )
    return (
        f"Heads of {profile.model} (layer, head) with their weights: {heads}.\n"
        f"Weights of the rows: question {profile.question:g}, last token {profile.last:g}.\n"
        f"All evidence of {made['prompts']} prompts is kept at keep rate {rates}: {counts} times (each judged with"
        f" heads that other prompts ranked), by the default scores {others} times."
    )
