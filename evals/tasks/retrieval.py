"""Tasks that ask for the values of records: RULER's needles in a haystack (arXiv 2404.06654, section 3).

A record is a sentence such as "The price of the golden kettle is 4821."; its key is the attribute with the thing. In a
document with distractors, a quarter of the text is records of other keys, whose words repeat.
"""

import random
from dataclasses import replace

from demo_models.documents import ADJECTIVES, ATTRIBUTES, NOUNS, Record
from evals.tasks.quiz import Quiz

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


ONE_NUMBER = "Answer with the number only."
ALL_NUMBERS = "Answer with the numbers only, separated by commas."
ASKED_AT_ONCE = 4
TOKENS_PER_DISTRACTOR = 45

WORDING = "{opening} the {order}{attribute} of the {adjective} {noun}?"


def records(count: int, rng: random.Random) -> list[Record]:
    """`count` records with different keys and different values."""
    keys = [(attribute, a, n) for attribute in ATTRIBUTES for a in ADJECTIVES for n in NOUNS]
    values = rng.sample(range(1000, 10_000), count)
    return [Record(*key, str(value)) for key, value in zip(rng.sample(keys, count), values, strict=True)]


def with_distractors(count: int, tokens: int, rng: random.Random) -> list[Record]:
    """One record for each TOKENS_PER_DISTRACTOR of a document of `tokens` tokens, but at least `count` records."""
    return records(min(3000, max(count, tokens // TOKENS_PER_DISTRACTOR)), rng)


def single_needle(tokens: int, rng: random.Random) -> Quiz:
    """One record among filler sentences; the question asks for its value. Metric: the answer states the value."""
    [record] = records(1, rng)
    sentence, question = record.sentence(), record.question(wording=WORDING)
    return Quiz([sentence], question, ONE_NUMBER, (record.value,), evidence=(sentence,))


def multi_key(tokens: int, rng: random.Random) -> Quiz:
    """One record among many with other keys; the question asks for its value. Metric: the answer states the value."""
    found = with_distractors(2, tokens, rng)
    asked = rng.choice(found)
    needles, question = [r.sentence() for r in found], asked.question(wording=WORDING)
    return Quiz(needles, question, ONE_NUMBER, (asked.value,), evidence=(asked.sentence(),))


def multi_query(tokens: int, rng: random.Random) -> Quiz:
    """Four records among many with other keys; one question asks for all four. Metric: share of the values stated."""
    found = with_distractors(ASKED_AT_ONCE, tokens, rng)
    asked = rng.sample(found, ASKED_AT_ONCE)
    *most, last = [f"the {r.attribute} of the {r.adjective} {r.noun}" for r in asked]
    question = f"What are {', '.join(most)} and {last}?"
    evidence = tuple(r.sentence() for r in asked)
    return Quiz([r.sentence() for r in found], question, ALL_NUMBERS, tuple(r.value for r in asked), evidence=evidence)


def multi_value(tokens: int, rng: random.Random) -> Quiz:
    """Four records of one key among filler sentences; the question asks for all values. Metric: share of the values
    that the answer states.
    """
    found = records(ASKED_AT_ONCE, rng)
    one = found[0]
    needles = [Record(one.attribute, one.adjective, one.noun, r.value).sentence() for r in found]
    question = f"What are all the values of the {one.attribute} of the {one.adjective} {one.noun}?"
    return Quiz(needles, question, ALL_NUMBERS, tuple(r.value for r in found), evidence=tuple(needles))
