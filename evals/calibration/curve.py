"""How much must be kept for a wanted agreement with the dense answers, and when a prompt should run dense."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from cluster.in_process.async_pair import AsyncPair
from evals.calibration.agreement import AGREES, agreement
from evals.calibration.prompts import CalibrationPrompt
from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.messages import FINAL_ONLY, KeptPrompt, Selection
from kv_transfer.options import AUTO, SelectionOptions
from router.decision.guard import signals
from speculator_service.scoring.selection import select
from speculator_service.scoring.units import unit_means

COVERAGES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
MOST_DENSE = 0.2
"""The largest share of the prompts that the limit of the entropy may send dense."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One prompt. kept, agreement: by coverage, in the order of COVERAGES: the share of the tokens that the target
    read, and the agreement with the dense answer. entropy: of the units' scores; None where the guard does not judge.
    """

    name: str
    kept: tuple[float, ...]
    agreement: tuple[float, ...]
    entropy: float | None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def observe(
    pair: AsyncPair, prompt: CalibrationPrompt, importance: Float32Array, options: SelectionOptions, max_tokens: int
) -> Observation:
    """Ask the target once dense and once at each coverage. Coverages that keep the same tokens are asked once."""
    ids = prompt.prompt.token_ids
    kept = [_kept(prompt, importance, covering(options, coverage)) for coverage in COVERAGES]
    dense = await _answer(pair, KeptPrompt.dense(ids), max_tokens)
    answers: dict[bytes, Int32Array] = {}
    for one in kept:
        key = one.positions.tobytes()
        if key not in answers:
            answers[key] = await _answer(pair, one, max_tokens)
    scores = unit_means(importance, prompt.layout.unit_starts(ids.size, options)).astype(np.float32)
    found = signals(Selection(kept[0], 0.0, unit_scores=scores), options, prompt.layout)
    return Observation(
        prompt.name,
        tuple(one.token_ids.size / ids.size for one in kept),
        tuple(agreement(answers[one.positions.tobytes()], dense) for one in kept),
        found.get("entropy"),
    )


def covering(options: SelectionOptions, coverage: float) -> SelectionOptions:
    """The options with `keep_rate: auto` and this coverage."""
    return options.model_copy(update={"keep_rate": AUTO, "coverage": coverage})


def wanted_coverage(observations: Sequence[Observation], wanted: float) -> float | None:
    """The smallest of COVERAGES that reaches the wanted mean agreement, as all larger ones do; None if none does."""
    means = np.mean([one.agreement for one in observations], axis=0)
    enough = np.flatnonzero(means < wanted)
    first = int(enough[-1]) + 1 if enough.size else 0
    return COVERAGES[first] if first < len(COVERAGES) else None


def entropy_limit(observations: Sequence[Observation], coverage: float) -> float | None:
    """The entropy above which prompts run dense: the limit that sends the most disagreeing answers dense, less the
    agreeing ones, and at most MOST_DENSE of all prompts. None if no limit sends more disagreeing ones than others.
    """
    place = COVERAGES.index(coverage)
    judged = [(one.entropy, one.agreement[place] < AGREES) for one in observations if one.entropy is not None]
    best, limit = 0, None
    for candidate, _ in judged:
        above = [differs for entropy, differs in judged if entropy > candidate]
        gain = sum(above) - (len(above) - sum(above))
        if gain > best and len(above) <= MOST_DENSE * len(observations):
            best, limit = gain, candidate
    return None if limit is None else round(limit, 4)


def _kept(prompt: CalibrationPrompt, importance: Float32Array, options: SelectionOptions) -> KeptPrompt:
    positions, _ = select(torch.from_numpy(importance), options, prompt.layout)
    at = positions.numpy().astype(np.int32)
    return KeptPrompt(prompt.prompt.token_ids[at], at, prompt.prompt.size)


async def _answer(pair: AsyncPair, prompt: KeptPrompt, max_tokens: int) -> Int32Array:
    sampling = {"temperature": 0.0, "max_tokens": max_tokens, "output_kind": FINAL_ONLY}
    outputs = [output async for output in pair.generate(prompt, sampling)]
    return outputs[-1].completions[0].token_ids
