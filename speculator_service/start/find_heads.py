"""Finds the retrieval heads of a model that has no head profile: the ones that look at what a question asks for.

A head is ranked by the attention mass that it puts on known evidence (QRHead, arXiv 2506.09944, section 3), over short
prompts of several kinds. The mean is that of the square roots: a head that looks a little in every prompt is worth more
than one that looks much in few.
"""

import logging
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, runtime_checkable
from uuid import uuid4

import torch

from kv_transfer.arrays import Int32Array, Span
from skim_common.errors import ModelError, SkimError
from skim_common.models.info import load_tokenizer
from skim_common.models.source import public_name
from speculator_service.engine import SpeculatorEngine
from speculator_service.model import model_fingerprint
from speculator_service.scoring.heads import Head, HeadProfile, save, saved_file
from speculator_service.start.probe import NeedlePrompt, filler_line, find_failure, token_ids, with_needle

logger = logging.getLogger(__name__)

COUNT = 8
DEPTH = 0.8
"""The heads are in this share of the layers, the lowest."""
LAST = 0.5
"""The weight of the last token's row; that of the question's rows is the rest to 1."""

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


@runtime_checkable
class HeadReader(SpeculatorEngine, Protocol):
    """An engine that tells what each head looks at."""

    async def head_masses(
        self, request_id: str, token_ids: Int32Array, question: Span
    ) -> tuple[list[tuple[int, int]], torch.Tensor]: ...

    def use_heads(self, profile: HeadProfile | None) -> None: ...


async def find_heads(
    engine: HeadReader, model: str, progress: Callable[[int, int], None] | None = None
) -> HeadProfile | None:
    """The profile of the best heads, by which `engine` scores from now on; None if they do not pass the start probe by
    themselves, or the engine is too short for the prompts.

    model: whose tokens the engine reads. progress: called with the prompts read so far, and all. Raises ModelError for
    a tokenizer that cannot be used, SkimError if the engine fails.
    """
    prompts = head_prompts(model)
    if max(prompt.token_ids.size for prompt in prompts) > min(engine.info.max_model_len, engine.info.max_position):
        return None
    name, worth = f"skim-heads-{uuid4().hex}", []
    names: list[tuple[int, int]] = []
    for number, prompt in enumerate(prompts):
        if progress is not None:
            progress(number, len(prompts))
        names, masses = await engine.head_masses(f"{name}-{number}", prompt.token_ids, prompt.question)
        worth.append(masses[..., slice(*prompt.needle)].sum(-1).sqrt())
    heads = _best(names, torch.stack(worth).mean(0).square())
    if not heads:
        return None
    made = {"by": "speculator_service.start.find_heads", "prompts": len(prompts)}
    fingerprint = ""  # of a model that cannot be known again
    with suppress(ModelError):
        fingerprint = model_fingerprint(engine.info)
    profile = HeadProfile(
        model=public_name(model), fingerprint=fingerprint, question=1 - LAST, last=LAST, heads=heads, made=made
    )
    engine.use_heads(profile)
    if await find_failure(engine, model, heads_alone=True) is None:
        return profile
    engine.use_heads(None)
    return None


def _best(names: list[tuple[int, int]], worth: torch.Tensor) -> tuple[Head, ...]:
    """names: (layer, head) of n heads. worth: float32 [2, n], of the question's rows and of the last token's row."""
    low = [place for place, (layer, _) in enumerate(names) if layer < DEPTH * (1 + names[-1][0])]
    by_rows = (1 - LAST) * worth[0] + LAST * worth[1]
    ranked = sorted(low, key=lambda place: -by_rows[place].item())[:COUNT]
    heads = [(*names[place], round(by_rows[place].item(), 4)) for place in ranked]
    return tuple(Head(layer=layer, head=head, weight=weight) for layer, head, weight in heads if weight > 0)


async def ensure_heads(engine: SpeculatorEngine, model: str) -> None:
    """Find the heads of a HeadReader that has no head profile, and save them for later starts on this machine; not of
    weights whose attention fails the start probe. Raises SkimError if the engine fails."""
    if engine.info.has_head_profile or not isinstance(engine, HeadReader):
        return
    profile = None
    with suppress(ModelError):
        if await find_failure(engine, model) is None:
            logger.info("finding the retrieval heads of %s, once for this machine", model)
            profile = await find_heads(engine, model)
    if profile is None:
        logger.info("no heads of %s find what a question asks for: it reads every prompt as a whole", model)
    elif profile.fingerprint:
        try:
            save(profile, saved_file(profile.fingerprint))
        except SkimError as error:
            logger.warning("the head profile of %s is not saved: %s", model, error)


def head_prompts(model: str) -> list[NeedlePrompt]:
    """OF_EACH_KIND prompts of each kind, in the tokens of `model`: one user message in its chat template, or plain text
    without one. Raises ModelError for a tokenizer that cannot be used.
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
