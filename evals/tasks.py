"""All tasks by name, and the prompts made from them."""

import inspect
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from evals import aggregation, order, retrieval
from evals.quiz import Count, Quiz, Style, compose
from kv_transfer.errors import SkimError

TASKS: dict[str, Callable[[int, random.Random], Quiz]] = {
    "single_needle": retrieval.single_needle,
    "multi_key": retrieval.multi_key,
    "multi_query": retrieval.multi_query,
    "multi_value": retrieval.multi_value,
    "first_or_last": order.first_or_last,
    "last_update": order.last_update,
    "nth_record": order.nth_record,
    "variable_tracking": aggregation.variable_tracking,
    "counting": aggregation.counting,
    "most_frequent": aggregation.most_frequent,
}


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt. text: the user's message. seed: seeds everything else that is random for this prompt. history: the
    messages before it.
    """

    task: str
    length: int
    quiz: Quiz
    text: str
    seed: str
    history: tuple[dict[str, str], ...] = ()

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*self.history, {"role": "user", "content": self.text}]


def describe(task: str) -> str:
    """The task and its metric: the docstring of its function on one line."""
    return " ".join((inspect.getdoc(TASKS[task]) or "").split())


def make_samples(
    tasks: Sequence[str], lengths: Sequence[int], count: int, *, seed: int, style: Style, tokens: Count
) -> Iterator[Sample]:
    """`count` samples for each task and length. Each has its own seed, so a larger count keeps the first samples.

    tokens: gives the length of a message in tokens. Raises SkimError for an unknown task, and for a length that is too
    short for a task.
    """
    unknown = [task for task in tasks if task not in TASKS]
    if unknown:
        raise SkimError(f"unknown task {unknown[0]!r}: choose from {', '.join(TASKS)}")
    for length in lengths:
        for task in tasks:
            for index in range(count):
                name = f"{seed} {task} {length} {index}"
                rng = random.Random(name)
                quiz = TASKS[task](length, rng)
                try:
                    text = compose(quiz, length, style, tokens, rng)
                except ValueError as error:
                    raise SkimError(f"task {task} at length {length}: {error}") from None
                yield Sample(task, length, quiz, text, name)
