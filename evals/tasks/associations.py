"""A needle that shares no word with the question: what connects them is general knowledge.

NoLiMa (arXiv 2502.05167) shows that long-context models find such needles far less often. A lexical ranking cannot find
them at all.
"""

import random

from evals.tasks.quiz import Frame, Quiz
from evals.tasks.source_texts import NAMES, some_prose

PERSONS = 4

SIGHTS = {
    "Paris": "the Eiffel Tower",
    "Rome": "the Colosseum",
    "London": "Big Ben",
    "New York": "the Statue of Liberty",
    "Moscow": "the Kremlin",
    "Barcelona": "the Sagrada Familia",
    "Berlin": "the Brandenburg Gate",
    "Athens": "the Acropolis",
    "Istanbul": "the Hagia Sophia",
    "Dresden": "the Semper Opera House",
    "San Francisco": "the Golden Gate Bridge",
    "Venice": "the Rialto Bridge",
    "Amsterdam": "the Rijksmuseum",
    "Beijing": "the Forbidden City",
    "Dubai": "the Burj Khalifa",
    "Rio de Janeiro": "the statue of Christ the Redeemer",
    "Seattle": "the Space Needle",
    "Toronto": "the CN Tower",
}

TRADES = {
    "bread": "works as a baker",
    "teeth": "works as a dentist",
    "sick animals": "works as a veterinarian",
    "flowers": "works as a florist",
    "shoes": "works as a cobbler",
    "legal contracts": "works as a lawyer",
    "airplanes": "works as a pilot",
    "broken engines": "works as a mechanic",
    "stars and planets": "works as an astronomer",
    "old bones of dinosaurs": "works as a paleontologist",
}


def association(tokens: int, rng: random.Random) -> Quiz:
    """The houses of four persons stand next to sights of four cities; the question asks who lives in one city,
    which the text does not name. Metric: the answer states the name and none of the other three.
    """
    cities = rng.sample(sorted(SIGHTS), PERSONS)
    names = rng.sample(NAMES, PERSONS)
    pairs = zip(names, cities, strict=True)
    needles = [f"The house of {name} stands right next to {SIGHTS[city]}." for name, city in pairs]
    return _who(needles, names, f"Which person lives in {cities[0]}?", tokens, rng)


def trade(tokens: int, rng: random.Random) -> Quiz:
    """Four persons have four trades; the question asks who deals with what one of them is about, in other words.
    Metric: the answer states the name and none of the other three.
    """
    things = rng.sample(sorted(TRADES), PERSONS)
    names = rng.sample(NAMES, PERSONS)
    needles = [f"{name} {TRADES[thing]}." for name, thing in zip(names, things, strict=True)]
    return _who(needles, names, f"Whose daily job is all about {things[0]}?", tokens, rng)


def _who(needles: list[str], names: list[str], question: str, tokens: int, rng: random.Random) -> Quiz:
    """names: of the persons of the needles. The first needle answers."""
    name, *others = names
    frame = Frame(filler=some_prose(tokens, rng), joint="\n\n")
    mixed = rng.sample(needles, len(needles))
    return Quiz(mixed, question, "Answer with one name.", (name,), tuple(others), (needles[0],), frame)
