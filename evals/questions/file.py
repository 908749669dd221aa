"""Questions of people about texts of people, from a file.

Each line of the file is a JSON object: `document` (a text, or the id of one), `question`, and what is known of the
answer: `gold` (character ranges of the document that hold the evidence, [[start, end], ...]), `answers` (texts, of
which one is enough; of a question with choices the letter), `choices` (texts), `score` (evidence, choice, f1, exact or
contains), `set` (a name). Without `score` it is choice with choices, f1 with answers, else evidence. Texts with ids
stand in a second file beside it, whose lines have `id` and `text`: `questions.jsonl` has `documents.jsonl`. Both may be
gzipped (`.jsonl.gz`). A folder stands for the file `questions.jsonl` or `questions.jsonl.gz` in it.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from evals.tasks.quiz import Message
from skim_common.errors import SkimError

Score = Literal["evidence", "choice", "f1", "exact", "contains"]


@dataclass(frozen=True, slots=True)
class Question:
    """number: of its line, from 1. gold: half-open character ranges of `document`. Empty: not known."""

    number: int
    set: str
    document: str
    question: str
    gold: tuple[tuple[int, int], ...]
    answers: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()
    score: Score = "evidence"

    @property
    def messages(self) -> list[Message]:
        """The document, then the question."""
        return [{"role": "user", "content": f"{self.document}\n\n{self.question}"}]


def read_questions(path: Path) -> list[Question]:
    """The questions, in the order of the file. Raises SkimError that names file and line for what is no question."""
    if path.is_dir():
        path = next(iter(sorted(path.glob("questions.jsonl*"))), path / "questions.jsonl")
    texts = {}
    beside = path.with_name(path.name.replace("questions", "documents", 1))
    if beside != path and beside.exists():
        texts = {_field(line, "id", str, beside, at): line.get("text") for at, line in _lines(beside)}
    return [_question(line, at, path, texts) for at, line in _lines(path)]


def _question(line: dict[str, Any], number: int, path: Path, texts: dict[str, Any]) -> Question:
    named = _field(line, "document", str, path, number)
    document = texts.get(named, named)
    gold = line.get("gold") or []
    try:
        ranges = tuple((int(start), int(end)) for start, end in gold)
    except (TypeError, ValueError):
        ranges = ((-1, 0),)
    if not isinstance(document, str) or any(not 0 <= start < end <= len(document) for start, end in ranges):
        raise SkimError(f"{path}, line {number}: gold must be [start, end] ranges inside the document's characters")
    asked = _field(line, "question", str, path, number)
    answers, choices = (_texts(line, name, path, number) for name in ("answers", "choices"))
    score = line.get("score", "choice" if choices else "f1" if answers else "evidence")
    if score not in get_args(Score):
        raise SkimError(f"{path}, line {number}: score must be one of {', '.join(get_args(Score))}")
    return Question(number, str(line.get("set", path.name)), document, asked, ranges, answers, choices, score)


def _texts(line: dict[str, Any], name: str, path: Path, number: int) -> tuple[str, ...]:
    found = line.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, str) and one for one in found):
        raise SkimError(f"{path}, line {number}: {name} must be a list of texts that are not empty")
    return tuple(found)


def _field(line: dict[str, Any], name: str, kind: type, path: Path, number: int) -> Any:
    if not isinstance(line.get(name), kind) or not line[name]:
        raise SkimError(f"{path}, line {number}: {name} must be a text that is not empty")
    return line[name]


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    number = 0
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found = json.loads(line)
                    if not isinstance(found, dict):
                        raise ValueError("it is no JSON object")
                    yield number, found
    except (OSError, EOFError, ValueError) as error:
        raise SkimError(f"{path} cannot be read as lines of JSON (line {number}): {error}") from None
