"""BABILong's qa1 to qa5 (arXiv 2406.10149): facts of bAbI (arXiv 1502.05698) hidden in prose, and a question.

The facts, the questions and the labels are those of bAbI's grammar, made here. The order of instruction, form of the
answer, context and question is BABILong's. What differs: the instructions are our words, without examples, and the
prose is that of `source_texts` in place of PG19. Metric of all: the first sentence of the answer names the right label
and no other label of the task.
"""

import random
from dataclasses import dataclass, field

from evals.tasks.metrics import only_label
from evals.tasks.quiz import CONTEXT, Frame, Quiz
from evals.tasks.source_texts import some_prose

PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
MOVERS, GIVERS = ("Daniel", "John", "Mary", "Sandra"), ("Bill", "Fred", "Jeff", "Mary")
OPPOSITE = {"north": "south", "south": "north", "east": "west", "west": "east"}
MOVED = ("went to", "moved to", "journeyed to", "travelled to", "went back to")
TAKEN = ("took", "got", "grabbed", "picked up")
DROPPED = ("dropped", "left", "discarded", "put down")
GIVEN = ("gave", "handed", "passed")
FACTS = {"qa1": 10, "qa2": 14, "qa3": 24}
TEMPLATE = (
    f"Facts about {{about}} are hidden in the text below. Answer the question by these facts alone. {{rule}}\n{{form}}"
    f"\n<context>\n{CONTEXT}\n</context>\nQuestion: {{question}}"
)
CARRIED = "What a person holds moves with the person; what a person dropped stays where it was dropped."


@dataclass
class _World:
    """People who move and carry things. been: each person's last place with the fact that says so. trail: the places of
    each thing, each with the facts that it follows from."""

    rng: random.Random
    facts: list[str] = field(default_factory=list)
    been: dict[str, tuple[str, str]] = field(default_factory=dict)
    held: dict[str, tuple[str, str]] = field(default_factory=dict)
    trail: dict[str, list[tuple[str, tuple[str, ...]]]] = field(default_factory=dict)

    def say(self, person: str, verbs: tuple[str, ...], what: str) -> str:
        """A new fact. The same one twice would make it unclear which of them answers, so it gets another verb."""
        wordings = [f"{person} {verb} the {what}." for verb in verbs]
        self.facts.append(self.rng.choice([one for one in wordings if one not in self.facts] or wordings))
        return self.facts[-1]

    def move(self, person: str) -> None:
        place = self.rng.choice([one for one in PLACES if one != self.been.get(person, ("", ""))[0]])
        fact = self.say(person, MOVED, place)
        self.been[person] = (place, fact)
        for thing, (holder, took) in self.held.items():
            if holder == person:
                self.trail[thing].append((place, (took, fact)))

    def handle(self, person: str) -> None:
        """Drop a thing that the person holds, or take one that lies there; else move."""
        place, came = self.been.get(person, ("", ""))
        mine = [thing for thing, (holder, _) in self.held.items() if holder == person]
        here = [t for t in THINGS if t not in self.held and (t not in self.trail or self.trail[t][-1][0] == place)]
        if mine and self.rng.random() < 0.5:
            fact = self.say(person, DROPPED, f"{mine[0]} there")
            del self.held[mine[0]]
            self.trail[mine[0]][-1] = (place, (came, fact))
        elif place and here:
            thing = self.rng.choice(here)
            fact = self.say(person, TAKEN, f"{thing} there")
            self.held[thing] = (person, fact)
            self.trail.setdefault(thing, [(place, ())])[-1] = (place, (came, fact))
        else:
            self.move(person)


def qa1(tokens: int, rng: random.Random) -> Quiz:
    """One supporting fact: where is a person? Metric: the place, and no other place."""
    world = _World(rng)
    for _ in range(FACTS["qa1"]):
        world.move(rng.choice(MOVERS))
    person = rng.choice(sorted(world.been))
    place, fact = world.been[person]
    return _quiz("where people are", world.facts, f"Where is {person}?", place, (fact,), PLACES, tokens, rng)


def qa2(tokens: int, rng: random.Random) -> Quiz:
    """Two supporting facts: where is a thing, which a person took there? Metric: the place, and no other place."""
    world = _people_with_things("qa2", 1, rng)
    thing = rng.choice([thing for thing, places in world.trail.items() if len(places) > 1])
    place, evidence = world.trail[thing][-1]
    return _quiz("people and things", world.facts, f"Where is the {thing}?", place, evidence, PLACES, tokens, rng)


def qa3(tokens: int, rng: random.Random) -> Quiz:
    """Three supporting facts: where was a thing before a place? Metric: the place, and no other place."""
    world = _people_with_things("qa3", 2, rng)
    thing = rng.choice([thing for thing, places in world.trail.items() if _returns_not(places)])
    (before, first), (place, last) = world.trail[thing][-2:]
    question, evidence = f"Where was the {thing} before the {place}?", tuple(dict.fromkeys((*first, *last)))
    return _quiz("people and things", world.facts, question, before, evidence, PLACES, tokens, rng)


def _people_with_things(task: str, moves: int, rng: random.Random) -> _World:
    """A story in which a thing has moved so many times, the last time to a place where it had not been."""
    while True:
        world = _World(rng)
        while len(world.facts) < FACTS[task]:
            person = rng.choice(MOVERS)
            (world.move if rng.random() < 0.5 else world.handle)(person)
        if any(len(places) > moves and _returns_not(places) for places in world.trail.values()):
            return world


def _returns_not(places: list[tuple[str, tuple[str, ...]]]) -> bool:
    """The last place occurs once in the trail of a thing that has moved."""
    names = [place for place, _ in places]
    return len(names) > 1 and names.count(names[-1]) == 1


def qa4(tokens: int, rng: random.Random) -> Quiz:
    """Two-argument relations: what is north of a place, or what is a place north of? Metric: the place, and no other
    place.
    """
    one, two, three = rng.sample(PLACES, 3)
    first = rng.choice(sorted(OPPOSITE))
    second = rng.choice([way for way in OPPOSITE if way != OPPOSITE[first]])
    relations = [(one, first, two), (two, second, three)]
    facts = [f"The {a} is {way} of the {b}." for a, way, b in relations]
    at = rng.randrange(2)
    a, way, b = relations[at]
    asked = [(f"What is {way} of the {b}?", a), (f"What is the {a} {way} of?", b)]
    question, answer = rng.choice(asked)
    evidence = (facts[at],)
    rng.shuffle(facts)
    return _quiz("where places are", facts, question, answer, evidence, PLACES, tokens, rng)


def qa5(tokens: int, rng: random.Random) -> Quiz:
    """Three-argument relations: who gave what to whom? Metric: the person or thing, and none of the others."""
    givers, things = rng.sample(GIVERS, len(GIVERS)), rng.sample(THINGS, 2)
    facts, gifts = [], []
    for thing, giver, receiver in zip(things, givers[::2], givers[1::2], strict=True):
        facts.append(f"{giver} {rng.choice(TAKEN)} the {thing} there.")
        gifts.append((giver, thing, receiver, f"{giver} {rng.choice(GIVEN)} the {thing} to {receiver}."))
        facts.append(gifts[-1][3])
        facts += [f"{rng.choice(GIVERS)} {rng.choice(MOVED)} the {rng.choice(PLACES)}." for _ in range(2)]
    giver, thing, receiver, fact = rng.choice(gifts)
    asked = [
        (f"What did {giver} give to {receiver}?", thing),
        (f"Who gave the {thing} to {receiver}?", giver),
        (f"Who did {giver} give the {thing} to?", receiver),
        (f"Who received the {thing}?", receiver),
        (f"Who gave the {thing}?", giver),
    ]
    question, answer = rng.choice(asked)
    return _quiz("people and things", facts, question, answer, (fact,), (*GIVERS, *THINGS), tokens, rng)


BABILONG = {"qa1": qa1, "qa2": qa2, "qa3": qa3, "qa4": qa4, "qa5": qa5}


def _quiz(
    about: str,
    facts: list[str],
    question: str,
    answer: str,
    evidence: tuple[str, ...],
    labels: tuple[str, ...],
    tokens: int,
    rng: random.Random,
) -> Quiz:
    """labels: all answers of the task. Those of the question do not count, as in BABILong."""
    rule = CARRIED if "things" in about else "The latest fact about a person counts."
    form = "Answer with one word. Do not write anything else."
    template = TEMPLATE.format(about=about, rule=rule, form=form, question=question, context=CONTEXT)
    others = tuple(label for label in labels if label != answer and label not in question)
    frame = Frame(filler=some_prose(tokens, rng), joint=" ", template=template, limit=20)
    return Quiz(facts, question, "", (answer,), others, evidence, frame, only_label)
