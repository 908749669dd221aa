"""Prompts whose answers need a second look at the text: what is needed late follows from what was answered before."""

import inspect
import random
from collections.abc import Callable
from dataclasses import dataclass
from difflib import SequenceMatcher

from cluster.commands.demo_document import words
from evals.prose import OPENING_WORDS, PARAGRAPHS, PASSAGES
from evals.quiz import Count, Frame, Quiz, compose
from evals.retrieval import multi_key
from evals.texts import paragraphs, some_prose

FIRST_NAMES = words("Bruno Clara Conrad Elsa Greta Henry Hugo Judith Lucy Martin Nina Oscar Paula Rosa Simon Victor")
LAST_NAMES = words(
    "Brandt Costa Duarte Fischer Hansen Iversen Jansen Keller Meyer Moreau Novak Okafor Rossi Silva Varga"
)
TOWNS = words("Aveiro Bergen Cadiz Galway Graz Leiden Lucca Lugano Murcia Namur Odense Rijeka Sligo Tartu Trieste Vigo")
ROOMS = words("archive armoury cellar chapel greenhouse kitchen laboratory library observatory pantry studio workshop")
PERSONS = 10


@dataclass(frozen=True, slots=True)
class Sample:
    """text: the user's message. quiz: its `evidence` is in the order of the answer."""

    task: str
    text: str
    quiz: Quiz

    def score(self, answer: str) -> float:
        """As `Quiz.score`. For a quotation: the share of the passage that the answer repeats in one piece, because the
        answer has another part, too.
        """
        if not self.quiz.quoted:
            return self.quiz.score(answer)
        wanted, given = " ".join(self.quiz.expected[0].split()), " ".join(answer.split())
        # autojunk ignores frequent characters of long texts.
        match = SequenceMatcher(None, given, wanted, autojunk=False).find_longest_match()
        return match.size / len(wanted)


def record(tokens: int, rng: random.Random) -> Quiz:
    """One record among many with other keys; the question asks for its value. The demo pair can answer it. A recall
    repairs a selection that missed the record. Metric: the answer states the value.
    """
    return multi_key(tokens, rng)


def two_hop(tokens: int, rng: random.Random) -> Quiz:
    """Ten persons hold keys of rooms, and have houses in towns. The question asks for the holder of one key and for the
    town of that person's house, which no word of the question names. Metric: the answer states the town.
    """
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    people, towns, rooms = rng.sample(names, PERSONS), rng.sample(TOWNS, PERSONS), rng.sample(ROOMS, PERSONS)
    held = [f"The key of the {room} is held by {person}." for room, person in zip(rooms, people, strict=True)]
    live = [f"{person} has a small house in {town}." for person, town in zip(people, towns, strict=True)]
    question = f"Who holds the key of the {rooms[0]}, and in which town does that person have a house?"
    hint = "First name the person, then the town, in one full sentence."
    facts = rng.sample([*held, *live], 2 * PERSONS)
    return Quiz(facts, question, hint, (towns[0],), evidence=(held[0], live[0]))


def summarise_then_quote(tokens: int, rng: random.Random) -> Quiz:
    """Paragraphs of real prose. The answer first summarises one of them, then quotes another one word for word. Metric:
    the share of the quoted paragraph that the answer repeats in one piece.
    """
    passages = rng.sample([part for part in paragraphs() if len(part) in PASSAGES], 2)
    first, second = (" ".join(passage.split()[:OPENING_WORDS]) for passage in passages)
    question = (
        f'First summarise the paragraph that begins with "{first}" in one short sentence. Then copy the paragraph that'
        f' begins with "{second}".'
    )
    hint = "Repeat the second paragraph word for word."
    frame = Frame(PARAGRAPHS, some_prose(tokens, rng, without=tuple(passages)), joint="\n\n")
    needles, expected = rng.sample(passages, 2), (passages[1],)
    return Quiz(needles, question, hint, expected, evidence=tuple(passages), frame=frame, quoted=True)


TASKS: dict[str, Callable[[int, random.Random], Quiz]] = {
    "record": record,
    "two_hop": two_hop,
    "summarise_then_quote": summarise_then_quote,
}


def make_sample(task: str, tokens: int, count: Count, seed: str) -> Sample:
    """A prompt of at least `tokens` tokens by `count`. The demo pair's task has no introduction and no hint."""
    rng = random.Random(seed)
    quiz = TASKS[task](tokens, rng)
    return Sample(task, compose(quiz, tokens, "plain" if task == "record" else "instruct", count, rng), quiz)


def describe(task: str) -> str:
    """The task and its metric: the docstring of its function on one line."""
    return " ".join((inspect.getdoc(TASKS[task]) or "").split())
