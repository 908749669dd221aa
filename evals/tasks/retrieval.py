"""Tasks that ask for the values of records, in the words that the demo pair knows.

A record is a sentence such as "The price of the golden kettle is 4821."; its key is the attribute with the thing. In a
document with distractors, a quarter of the text is records of other keys, whose words repeat. Here also: counting.
"""

import random
from dataclasses import replace

from demo_models.documents import ADJECTIVES, ATTRIBUTES, FILLER_WORDS, NOUNS, Record
from evals.tasks.quiz import Quiz

UPDATES = 4
MOST_COUNTED = 9


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


def counting(tokens: int, rng: random.Random) -> Quiz:
    """The bells of four places rang three to nine times each; the question asks how often one of them rang.
    Metric: the answer states the count and no other number from one to nine.
    """
    places = rng.sample(FILLER_WORDS["place"], 4)
    counts = [rng.randint(3, MOST_COUNTED) for _ in places]
    needles = [f"The bell of the {p} rang." for p, n in zip(places, counts, strict=True) for _ in range(n)]
    rng.shuffle(needles)
    question = f"How many times did the bell of the {places[0]} ring?"
    others = tuple(str(n) for n in range(1, MOST_COUNTED + 1) if n != counts[0])
    evidence = (f"The bell of the {places[0]} rang.",)
    return Quiz(needles, question, "Answer with one number in digits.", (str(counts[0]),), others, evidence)
