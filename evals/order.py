"""Tasks about the order of records: one key has several values, and the question asks for one of them by its place.

The other records are distractors. An answer that also states another value of the key is wrong.
"""

import random
from dataclasses import replace

from evals.quiz import Quiz
from evals.retrieval import ONE_NUMBER, WORDING, with_distractors

UPDATES = 4


def first_or_last(tokens: int, rng: random.Random) -> Quiz:
    """Two values of one key; the question asks for the first or the last. Metric: the answer states only that value."""
    return _one_of(2, rng.choice([0, 1]), tokens, rng)


def last_update(tokens: int, rng: random.Random) -> Quiz:
    """Four values of one key; the question asks for the last. Metric: the answer states only that value."""
    return _one_of(UPDATES, UPDATES - 1, tokens, rng)


def nth_record(tokens: int, rng: random.Random) -> Quiz:
    """Four values of one key; the question asks for the second or third. Metric: the answer states only that value."""
    return _one_of(UPDATES, rng.choice([1, 2]), tokens, rng)


def _one_of(times: int, asked: int, tokens: int, rng: random.Random) -> Quiz:
    """`times` values of one key among distractors; the question asks for value number `asked`, counted from 0."""
    found = with_distractors(times, tokens, rng)
    found[:times] = [replace(found[0], value=r.value) for r in found[:times]]
    one, values = found[0], [r.value for r in found[:times]]
    order = {0: "first", 1: "second", 2: "third", times - 1: "last"}[asked]
    question = one.question(order=order, wording=WORDING)
    # The values are assigned after the shuffle, so that they stand in this order in the document.
    rng.shuffle(found)
    places = iter(values)
    needles = [replace(r, value=next(places)).sentence() if r.value in values else r.sentence() for r in found]
    others = tuple(value for value in values if value != values[asked])
    # Only all records of the key together show which one stands at the place that is asked for.
    evidence = tuple(replace(one, value=value).sentence() for value in values)
    return Quiz(needles, question, ONE_NUMBER, (values[asked],), others, evidence)
