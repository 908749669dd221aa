"""Tasks about the order of records: several values of one key, one of them asked for by its place.

The other records are distractors. An answer that states another value of the key too is wrong.
"""

import random
from dataclasses import replace

from evals.quiz import Quiz
from evals.retrieval import ONE_NUMBER, WORDING, with_distractors

UPDATES = 4


def first_or_last(tokens: int, rng: random.Random) -> Quiz:
    """A key that was set twice; asked for its first or its last value. Metric: that value alone is stated."""
    return _one_of(2, rng.choice([0, 1]), tokens, rng)


def last_update(tokens: int, rng: random.Random) -> Quiz:
    """A key that was set four times; asked for its last value. Metric: that value alone is stated."""
    return _one_of(UPDATES, UPDATES - 1, tokens, rng)


def nth_record(tokens: int, rng: random.Random) -> Quiz:
    """A key that was set four times; asked for its second or third value. Metric: that value alone is stated."""
    return _one_of(UPDATES, rng.choice([1, 2]), tokens, rng)


def _one_of(times: int, asked: int, tokens: int, rng: random.Random) -> Quiz:
    """`times` values of one key among distractors; the question asks for value number `asked`, from 0."""
    found = with_distractors(times, tokens, rng)
    found[:times] = [replace(found[0], value=r.value) for r in found[:times]]
    values = [r.value for r in found[:times]]
    order = {0: "first", 1: "second", 2: "third", times - 1: "last"}[asked]
    question = found[0].question(order=order, wording=WORDING)
    # In the document's order: the values of the key are numbered after the shuffle.
    rng.shuffle(found)
    places = iter(values)
    needles = [replace(r, value=next(places)).sentence() if r.value in values else r.sentence() for r in found]
    others = tuple(value for value in values if value != values[asked])
    return Quiz(needles, question, ONE_NUMBER, (values[asked],), others)
