"""A few texts of our own with questions, in the form of `evals.questions.file`. Each text states one fact once."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any


def document(*names: str) -> tuple[str, str, list[int]]:
    """A text of about 100 lines, the sentence with its fact, and the fact's characters."""
    text = "\n".join(
        f"The {name} of the meeting said that the budget of {name} is small." for name in names * (50 // len(names))
    )
    fact = f"The guest of the {names[0]} said that the roof of the hall leaks."
    whole = f"{text}\n{fact}\n{text}"
    return whole, fact, [whole.index(fact), whole.index(fact) + len(fact)]


TEXT, FACT, GOLD = document("chair", "clerk")
OTHER, OTHER_FACT, OTHER_GOLD = document("baker", "judge")
CHOICES = ["The budget", "The roof of the hall", "The chair"]

LINES: list[dict[str, Any]] = [
    {"set": "choice", "document": TEXT, "question": "What leaks, said the guest?", "gold": [GOLD], "choices": CHOICES,
     "answers": ["B"], "score": "choice"},
    {"set": "choice", "document": TEXT, "question": "Of what does the guest say that it leaks?", "gold": [GOLD],
     "choices": ["A. The roof of the hall", "B. The budget"], "answers": ["A"]},
    {"set": "words", "document": OTHER, "question": "What leaks, said the guest?", "gold": [OTHER_GOLD],
     "answers": ["the roof of the hall"]},
    {"set": "words", "document": TEXT, "question": "Whose roof leaks?", "gold": [GOLD], "answers": ["The hall"],
     "score": "contains"},
    {"set": "marked", "document": TEXT, "question": "What leaks?", "gold": [GOLD], "score": "evidence"},
]  # fmt: skip


def written(path: Path, lines: Sequence[Any] = LINES, opened: Callable[..., Any] = open) -> Path:
    """The lines in a file; with `gzip.open` compressed."""
    with opened(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return path
