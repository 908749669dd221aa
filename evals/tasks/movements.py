"""Facts that are spread over sentences: persons move and carry things (bAbI's tasks in long text; BABILong,
arXiv 2406.10149).
"""

import random

from evals.tasks.quiz import Frame, Quiz
from evals.tasks.source_texts import NAMES, some_prose

ROOMS = ("kitchen", "garden", "cellar", "attic", "bathroom", "balcony", "garage", "hallway")
THINGS = ("umbrella", "teapot", "guitar", "backpack", "telescope", "chessboard")
PERSONS, MOVES = 3, 2
ONE_ROOM = "Answer with one word, the name of the room."


def location(tokens: int, rng: random.Random) -> Quiz:
    """Three persons move twice each; the question asks where one of them is in the end (BABILong's qa1). Metric: the
    answer states that room and no other room of the text.
    """
    names, rooms = rng.sample(NAMES, PERSONS), rng.sample(ROOMS, PERSONS * MOVES)
    went = [[f"{name} went to the {rooms[MOVES * i + m]}." for m in range(MOVES)] for i, name in enumerate(names)]
    needles = [went[i][m] for m in range(MOVES) for i in rng.sample(range(PERSONS), PERSONS)]
    return _room(needles, f"Where is {names[0]} at the end?", rooms[MOVES - 1], rooms, tuple(went[0]), tokens, rng)


def carried(tokens: int, rng: random.Random) -> Quiz:
    """Three persons each take a thing and then go to a room; the question asks where one of the things is (BABILong's
    qa2). Metric: the answer states that room and neither of the other two.
    """
    names, things = rng.sample(NAMES, PERSONS), rng.sample(THINGS, PERSONS)
    rooms = rng.sample(ROOMS, PERSONS)
    took = [f"{name} picked up the {thing} and kept it." for name, thing in zip(names, things, strict=True)]
    went = [f"{name} went to the {room}." for name, room in zip(names, rooms, strict=True)]
    needles = [*rng.sample(took, PERSONS), *rng.sample(went, PERSONS)]
    return _room(needles, f"In which room is the {things[0]} now?", rooms[0], rooms, (took[0], went[0]), tokens, rng)


def _room(
    needles: list[str],
    question: str,
    room: str,
    rooms: list[str],
    evidence: tuple[str, ...],
    tokens: int,
    rng: random.Random,
) -> Quiz:
    others = tuple(other for other in rooms if other != room)
    frame = Frame(filler=some_prose(tokens, rng), joint="\n\n")
    return Quiz(needles, question, ONE_ROOM, (room,), others, evidence, frame)
