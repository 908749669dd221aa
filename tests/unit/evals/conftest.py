"""The demo pair's tokenizer, functions that count and make, and mock engines."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.tasks.registry import Sample, make_samples

MODELS = Path(__file__).parents[3] / "demo_models"

LENGTHS = {"single_needle": 1024, "multi_key": 1024, "first_or_last": 1024, "last_update": 1024, "nth_record": 1024}
LENGTHS |= {"counting": 1024}
REAL = 3072
"""The demo tokenizer knows few words, so that real text takes many tokens."""


def length_of(task: str) -> int:
    """A prompt length that suits the task in the demo tokenizer."""
    return LENGTHS.get(task, REAL)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODELS / "target")


@pytest.fixture(scope="session")
def tokens(tokenizer: Any) -> Callable[[str], int]:
    return lambda text: len(tokenizer(text, add_special_tokens=False).input_ids)


@pytest.fixture(scope="session")
def made(tokens: Callable[[str], int]) -> Callable[..., list[Sample]]:
    """Makes samples of a task: `made("counting", count=2, seed=1)`. They are made once."""
    known: dict[Any, list[Sample]] = {}

    def make(task: str, *, length: int | None = None, count: int = 1, seed: int = 0, style: str = "instruct") -> Any:
        key = (task, length or length_of(task), count, seed, style)
        if key not in known:
            task, size, count, seed, style = key
            known[key] = list(make_samples([task], [size], count, seed=seed, style=style, tokens=tokens))  # type: ignore[arg-type]
        return known[key]

    return make


def document(sample: Sample) -> str:
    """The message that holds the document."""
    return max((message["content"] for message in sample.messages), key=len)
