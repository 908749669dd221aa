"""Tasks in real prose: exact quotation, a summary, and the fourth turn of a conversation."""

import random
from collections import Counter

from evals.tasks.metrics import quoted
from evals.tasks.quiz import Frame, Quiz
from evals.tasks.retrieval import ONE_NUMBER, WORDING, records
from evals.tasks.source_texts import NAMES, paragraphs, some_prose

DISTRACTORS = 7
PASSAGES = range(120, 260)
OPENING_WORDS = 5
DECISIONS = 5
FACTS = ("The large hall has {} seats.", "Last month, {} millimetres of rain fell.")
TURNS = 4
PARAGRAPHS = "Below are paragraphs from several texts. Read them, then follow the instruction at the end."
DEEDS = (
    "buy {} new chairs",
    "plant {} oak trees",
    "print {} posters",
    "hire {} drivers",
    "repair {} windows",
    "order {} lamps",
    "invite {} guests",
    "scan {} old maps",
)


def quote(tokens: int, rng: random.Random) -> Quiz:
    """The question gives the first five words of a paragraph and asks for all of it. Metric: the share of equal
    characters of paragraph and answer, 0 below 0.6.
    """
    openings = Counter(map(_opening, paragraphs()))
    passage = rng.choice([part for part in paragraphs() if len(part) in PASSAGES and openings[_opening(part)] == 1])
    words = _opening(passage)
    question = f'Copy the paragraph that begins with "{words}".'
    frame = Frame(PARAGRAPHS, some_prose(tokens, rng, without=(passage,)), joint="\n\n")
    hint = "Repeat the whole paragraph word for word, and nothing else."
    return Quiz([passage], question, hint, (passage,), (), (passage,), frame, metric=quoted)


def summary(tokens: int, rng: random.Random) -> Quiz:
    """Five decisions are spread over the text; the question asks for a summary of them. Metric: the share of the
    decisions whose number the summary states; 0 if it states the number of one of two other facts.
    """
    numbers = rng.sample(range(11, 99), DECISIONS + len(FACTS))
    names, deeds = rng.sample(NAMES, DECISIONS), rng.sample(DEEDS, DECISIONS)
    parts = [f"{name} will {deed.format(n)}." for name, deed, n in zip(names, deeds, numbers, strict=False)]
    decided = [f"Decision: {part}" for part in parts]
    needles = [*decided, *(fact.format(n) for fact, n in zip(FACTS, numbers[DECISIONS:], strict=True))]
    rng.shuffle(needles)
    question = "Summarize the decisions in the text: who will do what, with the numbers."
    hint = "Leave out everything else."
    expected, wrong = (tuple(map(str, part)) for part in (numbers[:DECISIONS], numbers[DECISIONS:]))
    return Quiz(needles, question, hint, expected, wrong, tuple(decided), _prose(tokens, rng))


def multi_turn(tokens: int, rng: random.Random) -> Quiz:
    """The fourth turn of a conversation about one context, with right answers to the first three, as in SCBench's
    multi-turn mode (arXiv 2412.10319). The context of SCBench's key-value task is JSON; here it is eight records in
    real prose. Metric: the answer states the value and none of the other records' values.
    """
    found = records(DISTRACTORS + 1, rng)
    *asked, last = found[:TURNS]
    earlier = tuple((record.question(wording=WORDING), f"{record.value}.") for record in asked)
    frame = Frame(filler=some_prose(tokens, rng), joint="\n\n", earlier=earlier, limit=64)
    needles = [record.sentence() for record in rng.sample(found, len(found))]
    wrong = tuple(record.value for record in found if record is not last)
    return Quiz(needles, last.question(wording=WORDING), ONE_NUMBER, (last.value,), wrong, (last.sentence(),), frame)


def _opening(paragraph: str) -> str:
    return " ".join(paragraph.split()[:OPENING_WORDS])


def _prose(tokens: int, rng: random.Random) -> Frame:
    return Frame(filler=some_prose(tokens, rng), joint="\n\n")
