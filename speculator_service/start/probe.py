"""Whether a speculator that has just started finds facts among filler by its own scores, and the prompts for it.

Lines are tokenized one by one, so that each is a unit of whole tokens.
"""

import random
from dataclasses import dataclass
from typing import Any, Literal
from uuid import uuid4

import numpy as np

from kv_transfer.arrays import Int32Array, Span
from kv_transfer.layout import TextLayout
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from skim_common.models.info import load_tokenizer
from speculator_service.engine import SpeculatorEngine, TooLongError
from speculator_service.service import SpeculatorService

KEEP_RATE = 1 / 6
"""Scores that say nothing keep all three facts in one start of 200."""
LOOK_AHEAD = 2
"""As good as 8 here with SmolLM2, and sooner read."""

SEED = 7
FILLER_LINES = 21
FACTS = (("harbour", "marble"), ("library", "copper"), ("station", "velvet"))
"""Three places and the word that belongs to each."""

_SUBJECTS = ("The old farmer", "A tall student", "My neighbour", "The young nurse", "A quiet driver", "The tired cook")
_VERBS = ("repaired", "carried", "painted", "borrowed", "watched", "cleaned")
_OBJECTS = (
    "the wooden fence",
    "a heavy basket",
    "the kitchen table",
    "an empty bottle",
    "the garden gate",
    "a red kite",
)
_TIMES = ("before noon", "after the rain", "on Monday", "last winter", "in the evening")


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


@dataclass(frozen=True, slots=True, eq=False)
class NeedlePrompt:
    """token_ids: int32 [M]. starts: int32 [U], the first token of each line or other part. needle: the fact."""

    token_ids: Int32Array
    starts: Int32Array
    needle: Span
    question: Span


def needle_prompts(model: str) -> list[NeedlePrompt]:
    """One prompt per fact, in the tokens of `model` (a folder or a hub name); they differ in their last line alone.

    A raw text that ends inside a sentence: every causal language model can continue it, also without a chat template.
    Raises ModelError for a tokenizer that cannot be used.
    """
    tokenizer = load_tokenizer(model)
    rng = random.Random(SEED)
    lines = [filler_line(rng) for _ in range(FILLER_LINES)]
    places = sorted(rng.sample(range(2, FILLER_LINES - 1), len(FACTS)))
    for number, (place, (where, word)) in enumerate(zip(places, FACTS, strict=True)):
        lines.insert(place + number, f"The secret word of the {where} is {word}.")
    document = [token_ids(tokenizer, f"{line}\n") for line in lines]
    document[0] = [*tokenizer("").input_ids, *document[0]]
    prompts = []
    for number, place in enumerate(places):
        question = token_ids(tokenizer, f"The secret word of the {FACTS[number][0]} is")
        prompts.append(with_needle([*document, question], needle=place + number, question=len(document)))
    return prompts


def filler_line(rng: random.Random) -> str:
    """A short sentence that says nothing of use."""
    return f"{rng.choice(_SUBJECTS)} {rng.choice(_VERBS)} {rng.choice(_OBJECTS)} {rng.choice(_TIMES)}."


def token_ids(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a part of a prompt, without those that begin or end one."""
    return list(tokenizer(text, add_special_tokens=False).input_ids)


def with_needle(parts: list[list[int]], *, needle: int, question: int) -> NeedlePrompt:
    """The prompt of these parts, of which two are `needle` and `question`."""
    ends = np.cumsum([len(part) for part in parts], dtype=np.int32)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    return NeedlePrompt(
        np.array([token for part in parts for token in part], np.int32),
        starts,
        (int(starts[needle]), int(ends[needle])),
        (int(starts[question]), int(ends[question])),
    )
