"""How much must be kept for a wanted agreement with the dense answers."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evals.calibration.agreement import agreement
from evals.calibration.prompts import CalibrationPrompt
from kv_transfer.arrays import Float32Array, Int32Array
from kv_transfer.messages import FINAL_ONLY, KeptPrompt
from kv_transfer.options import AUTO, SelectionOptions
from skim.engines import PairEngines
from speculator_service.selection.select import select

COVERAGES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True, slots=True)
class Observation:
    """One prompt. kept, agreement: by coverage, in the order of COVERAGES: the share of the tokens that the target
    read, and the agreement with the dense answer.
    """

    name: str
    kept: tuple[float, ...]
    agreement: tuple[float, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


async def observe(
    pair: PairEngines, prompt: CalibrationPrompt, importance: Float32Array, options: SelectionOptions, max_tokens: int
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
    return Observation(
        prompt.name,
        tuple(one.token_ids.size / ids.size for one in kept),
        tuple(agreement(answers[one.positions.tobytes()], dense) for one in kept),
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


def _kept(prompt: CalibrationPrompt, importance: Float32Array, options: SelectionOptions) -> KeptPrompt:
    positions, _ = select(importance, options, prompt.layout)
    at = positions.astype(np.int32)
    return KeptPrompt(prompt.prompt.token_ids[at], at, prompt.prompt.size)


async def _answer(pair: PairEngines, prompt: KeptPrompt, max_tokens: int) -> Int32Array:
    sampling = {"temperature": 0.0, "max_tokens": max_tokens, "output_kind": FINAL_ONLY}
    outputs = [output async for output in pair.generate(prompt, sampling)]
    return outputs[-1].completions[0].token_ids
