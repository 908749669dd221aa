"""Whether a speculator that has just started finds facts among filler by its own scores."""

from typing import Literal
from uuid import uuid4

import numpy as np

from kv_transfer.layout import TextLayout
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from speculator_service.engine import SpeculatorEngine, TooLongError
from speculator_service.service import SpeculatorService
from speculator_service.start.needle_prompt import needle_prompts

KEEP_RATE = 1 / 6
"""Scores that say nothing keep all three facts in one start of 200."""
LOOK_AHEAD = 2
"""As good as 8 here with SmolLM2, and sooner read."""


async def find_failure(engine: SpeculatorEngine, model: str, *, heads_alone: bool = False) -> str | None:
    """Why the scores of `engine` cannot be trusted, in one sentence; None if they can.

    model: the folder or hub name whose tokens the engine reads. Each of three facts must be kept when it is asked for,
    without help of its words (BM25). The heads of a profile score one of them, or all with `heads_alone`. An engine
    that is too short is trusted. Raises SkimError if the engine fails.
    """
    prompts, limit = needle_prompts(model), min(engine.info.max_model_len, engine.info.max_position)
    if max(prompt.token_ids.size for prompt in prompts) + LOOK_AHEAD > limit:
        return None
    service, name = SpeculatorService(engine), f"skim-start-probe-{uuid4().hex}"
    for number, prompt in enumerate(prompts):
        by_heads = heads_alone or (engine.info.has_head_profile and number == 1)
        scoring: Literal["attention", "heads"] = "heads" if by_heads else "attention"
        options = SelectionOptions(
            keep_rate=KEEP_RATE, scoring=scoring, look_ahead=LOOK_AHEAD, reuse="off", protect_last=1
        )
        asked = np.array([prompt.question], np.int32)
        request = SelectRequest(
            f"{name}-{number}",
            prompt.token_ids,
            options,
            TextLayout(asked, units=prompt.starts, questions=asked),
            cache_salt=name,  # nothing of an earlier probe may be found in the prefix cache
        )
        try:
            kept = (await service.select(request)).kept.positions
        except TooLongError:
            return None
        if not np.isin(np.arange(*prompt.needle), kept).all():
            return (
                f"by the speculator's scores ({scoring}) a fact that the question asks for is not among the best sixth"
                " of a short prompt"
            )
    return None
