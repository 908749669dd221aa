"""Prompts with known evidence, by which retrieval heads are found. Their facts and questions are not in `evals.tasks`.

So `skim eval` and `skim bench evidence` measure on kinds of prompts by which no head was chosen.
"""

import random
from collections.abc import Callable, Iterator
from typing import Any

from cluster.in_process.prompts import RenderedPrompt, render
from evals.selection.chunk_recall import request_of
from evals.selection.evidence import evidence_spans
from evals.selection.prompts import template_messages
from evals.tasks.quiz import Frame, Quiz
from evals.tasks.registry import Sample, sample_of
from evals.tasks.source_texts import NAMES, some_code, some_prose
from kv_transfer.options import SelectionOptions
from speculator_service.request_scores import last_question

DETAILS = (
    ("{name} keeps a {thing} under the bed.", "What lies beneath the place where {name} sleeps?", "thing"),
    ("{name} has worked as a {job} for twelve years.", "What is the profession of {name}?", "job"),
    ("On Fridays {name} always eats {dish}.", "Which meal does {name} have at the end of the working week?", "dish"),
    ("{name} came to the town in {year}.", "Since when does {name} live here?", "year"),
    ("The dentist of {name} is called Doctor {doctor}.", "Who looks after the teeth of {name}?", "doctor"),
    ("{name} paid {year} crowns for the old boat.", "How much did the boat cost {name}?", "year"),
)
WORDS = {
    "thing": ("violin", "suitcase", "sword", "ladder", "drum", "telescope"),
    "job": ("baker", "surveyor", "plumber", "pilot", "gardener", "notary"),
    "dish": ("lentils", "pancakes", "trout", "dumplings", "goulash", "risotto"),
    "doctor": ("Hallberg", "Okafor", "Lindqvist", "Moreau", "Tanaka", "Petrov"),
    "year": tuple(str(year) for year in range(1911, 2020)),
}
SECTIONS = ("cache", "mailer", "scheduler", "gateway", "indexer", "billing", "search", "storage", "auth", "metrics")
KEYS = ("retry_limit", "queue_depth", "port", "timeout_ms", "batch_size", "max_clients", "backlog", "ttl_hours")
PLANTS = ("maple", "birch", "fern", "cedar", "willow", "juniper", "aspen", "hazel", "laurel", "myrtle")
SITES = ("north quay", "hill farm", "mill lane", "old station", "harbour road", "castle park")
VERBS = ("rank", "merge", "trim", "probe", "rotate", "pack", "fold", "score")
OBJECTS = ("orders", "routes", "frames", "ledgers", "badges", "crates", "tickets", "sensors")
PROJECTS = ("Aurora", "Basalt", "Cobalt", "Drift", "Ember", "Fjord")
CODES = ("Heron", "Ibis", "Jackal", "Kite", "Lynx", "Marten")


def detail(tokens: int, rng: random.Random) -> Quiz:
    """A sentence about a person in a story; the question has other words."""
    [(sentence, question, answer)] = _details(1, rng)
    others = [other for other, *_ in _details(3, rng, without=sentence)]
    return _in_prose([sentence, *others], question, answer, (sentence,), tokens, rng)


def two_details(tokens: int, rng: random.Random) -> Quiz:
    """Two sentences about two persons in a story; the question asks for both."""
    (first, asks, answer), (second, also, more) = _details(2, rng)
    question = f"{asks} And {also[0].lower()}{also[1:]}"
    return _in_prose([first, second], question, f"{answer} {more}", (first, second), tokens, rng)


def alias(tokens: int, rng: random.Random) -> Quiz:
    """The question names a project by a name that one sentence translates and another one uses."""
    projects, codes, names = rng.sample(PROJECTS, 3), rng.sample(CODES, 3), rng.sample(NAMES, 3)
    called = [
        f"Inside the company, project {project} is only called {code}."
        for project, code in zip(projects, codes, strict=True)
    ]
    led = [f"The team of {code} is led by {name}." for code, name in zip(codes, names, strict=True)]
    question = f"Who leads project {projects[0]}?"
    return _in_prose([*called, *led], question, names[0], (called[0], led[0]), tokens, rng)


def config_lines(tokens: int, rng: random.Random) -> Quiz:
    """One setting among the settings of many services."""
    lines = {
        f"{section}.{number}.{key}": str(rng.randint(10, 9999))
        for section in SECTIONS
        for number in range(1, 2 + tokens // 400)
        for key in KEYS
    }
    asked = rng.choice(list(lines))
    service, number, key = asked.split(".")
    question = f"What is the {key.replace('_', ' ')} of {service} {number}?"
    return _among_lines([f"{name} = {value}" for name, value in lines.items()], f"{asked} = ", question, rng)


def table_rows(tokens: int, rng: random.Random) -> Quiz:
    """One row of a table; the question names two of its columns."""
    rows, asked, question = _rows(tokens, rng)
    return _among_lines(rows, asked, question, rng)


def tool_rows(tokens: int, rng: random.Random) -> Quiz:
    """As `table_rows`, but a tool returned the rows after the question."""
    rows, asked, question = _rows(tokens, rng)
    function = {"name": "read_table", "arguments": '{"name": "plants"}'}
    call = {"id": "call-1", "type": "function", "function": function}
    calls = ({"role": "assistant", "content": "", "tool_calls": [call]},)
    return _among_lines(rows, asked, question, rng, calls)


def function(tokens: int, rng: random.Random) -> Quiz:
    """A short function among others; the question asks what it returns."""
    names = [f"{verb}_{what}" for verb in VERBS for what in OBJECTS]
    sources = [
        f'def {name}(items):\n    """{name.replace("_", " ").capitalize()}."""\n    return len(items) * {number}'
        for name, number in zip(rng.sample(names, 3), rng.sample(range(11, 99), 3), strict=True)
    ]
    asked = sources[0].partition("(")[0].removeprefix("def ")
    frame = Frame("Here is a Python module. Read it and answer.", some_code(tokens, rng, without=()), joint="\n\n")
    question = f"By what does {asked} multiply the number of its items?"
    return Quiz(sources, question, "Answer briefly.", (sources[0].split()[-1],), (), (sources[0],), frame)


TASKS: dict[str, Callable[[int, random.Random], Quiz]] = {
    make.__name__: make for make in (detail, two_details, alias, config_lines, table_rows, tool_rows, function)
}


class EvidencePrompt:
    """A rendered prompt with the token spans of its evidence. name: its seed. question: as the engine is asked."""

    def __init__(self, sample: Sample, tokenizer: Any) -> None:
        self.name = sample.seed
        self.rendered: RenderedPrompt = render(template_messages(sample.messages), tokenizer)
        self.evidence = evidence_spans(self.rendered, sample.quiz)
        self.question = last_question(request_of(sample.seed, self.rendered, SelectionOptions()))


def make_prompts(tokenizer: Any, length: int, count: int, seed: int) -> Iterator[EvidencePrompt]:
    """`count` prompts of about `length` tokens of each task, one of each task in turn. Raises SkimError."""

    def tokens(text: str) -> int:
        return len(tokenizer(text, add_special_tokens=False).input_ids)

    for index in range(count):
        for name, make in TASKS.items():
            yield EvidencePrompt(
                sample_of(name, make, length, f"heads {seed} {name} {index}", "instruct", tokens), tokenizer
            )


def _details(count: int, rng: random.Random, without: str = "") -> list[tuple[str, str, str]]:
    """Sentences about different persons, each with its question and its answer."""
    names = [name for name in NAMES if name not in without]
    found = []
    for name, (sentence, question, kind) in zip(rng.sample(names, count), rng.sample(DETAILS, count), strict=True):
        word = rng.choice(WORDS[kind])
        found.append((sentence.format(name=name, **{kind: word}), question.format(name=name), word))
    return found


def _rows(tokens: int, rng: random.Random) -> tuple[list[str], str, str]:
    """The rows of a table, the beginning of the row that is asked for, and the question."""
    rows = [
        f"| {plant} | {site} | bed {bed} | {rng.randint(1, 999)} |"
        for plant in PLANTS
        for site in SITES
        for bed in range(1, 2 + tokens // 600)
    ]
    plant, site, bed = (cell.strip() for cell in rng.choice(rows).strip("|").split("|")[:3])
    return rows, f"| {plant} | {site} | {bed} | ", f"How many plants of {plant} grow in {bed} at {site}?"


def _among_lines(
    lines: list[str], asked: str, question: str, rng: random.Random, calls: tuple[dict[str, Any], ...] = ()
) -> Quiz:
    """The line that begins with `asked` among all others."""
    [needle] = [line for line in lines if line.startswith(asked)]
    others = [line for line in lines if line != needle]
    frame = Frame("Read these lines, then answer.", tuple(rng.sample(others, len(others))), joint="\n", calls=calls)
    return Quiz([needle], question, "Answer briefly.", (needle[len(asked) :].strip(" |"),), (), (needle,), frame)


def _in_prose(
    needles: list[str], question: str, answer: str, evidence: tuple[str, ...], tokens: int, rng: random.Random
) -> Quiz:
    rng.shuffle(needles)
    frame = Frame("Read this text, then answer.", some_prose(tokens, rng), joint="\n\n")
    return Quiz(needles, question, "Answer briefly.", (answer,), (), evidence, frame)
