"""Short prompts with known evidence, by which a model's retrieval heads are found.

Each one has lines of one kind and asks for what one of them says: a fact about a person, a setting, a row of a table, a
short function. Their facts and questions are not in `evals.tasks`, so what is measured with those tasks has chosen no
head.
"""

import random
from collections.abc import Callable
from typing import Any

from skim_common.models.info import load_tokenizer
from vllm_hooks.needle_prompt import NeedlePrompt, filler_line, token_ids, with_needle

OF_EACH_KIND = 6
FILLER_LINES = 40
FUNCTIONS = 24
PERSONS = ("Yasmin", "Bruno", "Katja", "Dmitri", "Ingrid", "Kofi", "Leila", "Mateo")
FACTS = (
    ("{name} keeps a {word} under the bed.", "What lies beneath the place where {name} sleeps?"),
    ("{name} has worked as a {word} for twelve years.", "What is the profession of {name}?"),
    ("On Fridays {name} always eats {word}.", "Which meal does {name} have at the end of the working week?"),
    ("The dentist of {name} is called Doctor {word}.", "Who looks after the teeth of {name}?"),
)
"""Sentences with questions in other words."""
WORDS = (
    ("violin", "suitcase", "sword", "ladder"),
    ("baker", "surveyor", "plumber", "pilot"),
    ("lentils", "pancakes", "trout", "goulash"),
    ("Hallberg", "Okafor", "Moreau", "Tanaka"),
)
"""For each of FACTS."""
SERVICES = ("cache", "mailer", "scheduler", "gateway", "indexer", "billing", "search", "storage")
KEYS = ("retry_limit", "queue_depth", "port", "timeout_ms", "batch_size", "max_clients")
PLANTS = ("maple", "birch", "fern", "cedar", "willow", "juniper", "aspen", "hazel")
SITES = ("north quay", "hill farm", "mill lane", "old station", "harbour road")
VERBS = ("rank", "merge", "trim", "probe", "rotate", "pack", "fold", "score")
OBJECTS = ("orders", "routes", "frames", "ledgers", "badges", "crates", "tickets")

Lines = tuple[list[str], str]
"""The lines, of which the first one answers, and the question."""


def head_prompts(model: str) -> list[NeedlePrompt]:
    """OF_EACH_KIND prompts of each kind, in the tokens of `model` (a folder or a hub name).

    A prompt is one user message in the model's chat template, or plain text for a model without one.
    Raises ModelError for a tokenizer that cannot be used.
    """
    tokenizer = load_tokenizer(model)
    head, tail = _frame(tokenizer)
    prompts = []
    for number in range(OF_EACH_KIND):
        for make in KINDS:
            rng = random.Random(f"{make.__name__} {number}")
            lines, question = make(rng)
            needle, *others = lines
            place = rng.randrange(len(lines))
            others.insert(place, needle)
            document = ["Read these lines, then answer.", *others, ""]
            texts = [token_ids(tokenizer, f"{line}\n") for line in document]
            parts = [head, *texts, token_ids(tokenizer, question), tail]
            prompts.append(with_needle(parts, needle=place + 2, question=len(parts) - 2))
    return prompts


def _frame(tokenizer: Any) -> tuple[list[int], list[int]]:
    """What stands before and after a user's text in a chat; without a usable template, what begins a text."""
    mark = "the text of the message"
    try:
        chat = [{"role": "user", "content": mark}]
        before, after = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False).split(mark)
    except Exception:  # templates raise jinja2's errors and, through it, any other
        return list(tokenizer("").input_ids), []
    return token_ids(tokenizer, before), token_ids(tokenizer, after)


def fact(rng: random.Random) -> Lines:
    """Facts about four persons among filler."""
    facts = []
    for name, kind in zip(rng.sample(PERSONS, len(FACTS)), rng.sample(range(len(FACTS)), len(FACTS)), strict=True):
        sentence, question = FACTS[kind]
        facts.append((sentence.format(name=name, word=rng.choice(WORDS[kind])), question.format(name=name)))
    (asked, question), *others = facts
    lines = [line for line, _ in others] + [filler_line(rng) for _ in range(FILLER_LINES)]
    rng.shuffle(lines)
    return [asked, *lines], question


def setting(rng: random.Random) -> Lines:
    """Settings of services."""
    settings = [(service, key) for service in SERVICES for key in KEYS]
    rng.shuffle(settings)
    lines = [f"{service}.{key} = {rng.randint(10, 9999)}" for service, key in settings]
    service, key = settings[0]
    return lines, f"What is the {key.replace('_', ' ')} of {service}?"


def table_row(rng: random.Random) -> Lines:
    """Rows of a table; the question names two columns."""
    rows = [(plant, site) for plant in PLANTS for site in SITES]
    rng.shuffle(rows)
    lines = [f"| {plant} | {site} | {rng.randint(1, 999)} |" for plant, site in rows]
    return lines, f"How many plants of {rows[0][0]} grow at {rows[0][1]}?"


def function(rng: random.Random) -> Lines:
    """Functions of one line."""
    names = rng.sample([f"{verb}_{what}" for verb in VERBS for what in OBJECTS], FUNCTIONS)
    factors = rng.sample(range(11, 99), FUNCTIONS)
    lines = [f"def {name}(items): return len(items) * {by}" for name, by in zip(names, factors, strict=True)]
    return lines, f"By what does {names[0]} multiply the number of its items?"


KINDS: tuple[Callable[[random.Random], Lines], ...] = (fact, setting, table_row, function)
