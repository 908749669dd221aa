"""All tasks by name, and the prompts made from them."""

import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from evals.tasks import associations, prose, retrieval, tool_results
from evals.tasks import code as code_tasks
from evals.tasks.babilong import BABILONG
from evals.tasks.ifeval import IFEVAL
from evals.tasks.mrcr import mrcr
from evals.tasks.quiz import Count, Message, Quiz, Scored, Style, compose, converse
from evals.tasks.ruler import RULER
from skim_common.errors import SkimError

Make = Callable[[int, random.Random], Quiz]


def _of(benchmark: str, tasks: Mapping[str, Make]) -> dict[str, Make]:
    return {f"{benchmark}/{name}": make for name, make in tasks.items()}


FAMILIES: dict[str, dict[str, Make]] = {
    "ruler": _of("ruler", RULER),
    "babilong": _of("babilong", BABILONG),
    "repoqa": _of("repoqa", {"description": code_tasks.repoqa}),
    "mrcr": _of("mrcr", {"4_needles": mrcr}),
    "ifeval": _of("ifeval", IFEVAL),
    "scbench": _of("scbench", {"turn_4": prose.multi_turn}),
    "needles": {"single_needle": retrieval.single_needle, "multi_key": retrieval.multi_key},
    "no shared words": {"association": associations.association, "trade": associations.trade},
    "order": {
        "first_or_last": retrieval.first_or_last,
        "last_update": retrieval.last_update,
        "nth_record": retrieval.nth_record,
    },
    "code": {
        "default_value": code_tasks.default_value,
        "raised_error": code_tasks.raised_error,
        "returned_value": code_tasks.returned_value,
    },
    "quoting": {"quote": prose.quote},
    "tool results": {
        "json_records": tool_results.json_records,
        "json_objects": tool_results.json_objects,
        "log_lines": tool_results.log_lines,
    },
    "agent loop": {"agent_loop": tool_results.agent_loop},
    "counting": {"counting": retrieval.counting},
    "summary": {"summary": prose.summary},
}
"""The tasks of each family. The mean over all families counts each family once. The tasks of a published benchmark have
its name before a slash; what differs from it is said where they are made."""

PUBLISHED = ("ruler", "babilong", "repoqa", "mrcr", "ifeval", "scbench")
"""The families whose tasks are those of published benchmarks."""

REPLACED = {
    "multi_query": "ruler/niah_multiquery",
    "multi_value": "ruler/niah_multivalue",
    "needle_in_prose": "ruler/niah_multikey_1",
    "variable_tracking": "ruler/vt",
    "most_frequent": "ruler/fwe",
    "listing": "ruler/niah_multivalue",
    "location": "babilong/qa1",
    "carried": "babilong/qa2",
    "fourth_turn": "scbench/turn_4",
}
"""Tasks of recorded results that the code has no more, and what asks for the same in their place."""

TASKS = {name: make for tasks in FAMILIES.values() for name, make in tasks.items()}


def family_of(task: str) -> str:
    """The family of a task; the task itself if no family lists it (the turns of a conversation)."""
    return next((family for family, tasks in FAMILIES.items() if task in tasks), task)


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt. text: the last message. seed: seeds everything else that is random for this prompt. history: the
    messages before it. role: of the last message, user or tool. max_tokens: of the answer, if it is less than a run's.
    """

    task: str
    length: int
    quiz: Scored
    text: str
    seed: str
    history: tuple[Message, ...] = ()
    role: str = "user"
    max_tokens: int | None = None

    @property
    def messages(self) -> list[Message]:
        last: Message = {"role": self.role, "content": self.text}
        if self.role == "tool":
            last["tool_call_id"] = self.history[-1]["tool_calls"][0]["id"]
        return [*self.history, last]

    @property
    def family(self) -> str:
        """The family of the task."""
        return family_of(self.task)


def expanded(names: Sequence[str]) -> tuple[str, ...]:
    """The tasks of the names, each once; the name of a family stands for its tasks."""
    return tuple(dict.fromkeys(task for name in names for task in FAMILIES.get(name, (name,))))


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
                yield sample_of(task, TASKS[task], length, f"{seed} {task} {length} {index}", style, tokens)


def sample_of(
    task: str,
    make: Make,
    length: int,
    seed: str,
    style: Style,
    tokens: Count,
) -> Sample:
    """One prompt of a task's function `make`. Raises SkimError for a length that is too short for it."""
    rng = random.Random(seed)
    quiz = make(length, rng)
    try:
        document = compose(quiz, length, style, tokens, rng)
    except ValueError as error:
        raise SkimError(f"task {task} at length {length}: {error}") from None
    *history, last = converse(quiz, document, style)
    return Sample(task, length, quiz, last["content"], seed, tuple(history), last["role"], quiz.frame.limit)
