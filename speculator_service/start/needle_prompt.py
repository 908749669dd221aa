"""Short prompts with one fact among filler, in any model's tokens: what a speculator must find at its start.

Lines are tokenized one by one, so that each is a unit of whole tokens.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from skim_common.models.info import load_tokenizer

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


@dataclass(frozen=True, slots=True, eq=False)
class NeedlePrompt:
    """token_ids: int32 [M]. starts: int32 [U], the first token of each line or other part. needle, question: half-open
    token ranges, the fact and what asks for it.
    """

    token_ids: npt.NDArray[np.int32]
    starts: npt.NDArray[np.int32]
    needle: tuple[int, int]
    question: tuple[int, int]


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
    """The prompt of these parts, each given by its tokens. needle, question: the numbers of two of them."""
    ends = np.cumsum([len(part) for part in parts], dtype=np.int32)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    return NeedlePrompt(
        np.array([token for part in parts for token in part], np.int32),
        starts,
        (int(starts[needle]), int(ends[needle])),
        (int(starts[question]), int(ends[question])),
    )
