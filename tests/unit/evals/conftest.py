"""The demo pair's tokenizer, and a function that counts the tokens of a text."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

MODELS = Path(__file__).parents[3] / "demo_models"


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODELS / "target")


@pytest.fixture(scope="session")
def tokens(tokenizer: Any) -> Callable[[str], int]:
    return lambda text: len(tokenizer(text, add_special_tokens=False).input_ids)
