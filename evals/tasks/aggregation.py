"""Tasks whose answer follows from many sentences: following a chain, counting, finding the most frequent name.

They need all of their sentences, so they show what selection costs when no single sentence holds the answer.
"""

import random
import string

from demo_models.documents import FILLER_WORDS
from evals.tasks.quiz import Quiz

CHAINS, LINKS = 3, 4
MOST_COUNTED = 9
PLAYERS, MOST_WINS = 5, 6


def variable_tracking(tokens: int, rng: random.Random) -> Quiz:
    """Three chains of four assignments, such as "VAR KQZRT = 4821." and then "VAR MPQAB = VAR KQZRT."; the question
    asks which variables hold one value (RULER's variable tracking). Metric: share of the four names that the answer
    states; 0 if it states a name of another chain.
    """
    names = ["".join(rng.sample(string.ascii_uppercase, 5)) for _ in range(CHAINS * LINKS)]
    chains = [names[i * LINKS : (i + 1) * LINKS] for i in range(CHAINS)]
    values = rng.sample(range(1000, 10_000), CHAINS)
    assignments = []
    for chain, value in zip(chains, values, strict=True):
        sources = [str(value), *(f"VAR {name}" for name in chain)]
        assignments.append([f"VAR {name} = {source}." for name, source in zip(chain, sources, strict=False)])
    steps = [iter(chain) for chain in assignments]
    turns = [i for i in range(CHAINS) for _ in range(LINKS)]
    rng.shuffle(turns)
    question = f"Which variables hold the value {values[0]}?"
    others = tuple(name for chain in chains[1:] for name in chain)
    hint = "Answer with the names of the variables only, separated by commas."
    needles, evidence = [next(steps[i]) for i in turns], tuple(assignments[0])
    return Quiz(needles, question, hint, tuple(chains[0]), others, evidence)


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


def most_frequent(tokens: int, rng: random.Random) -> Quiz:
    """Five people win games, one of them six games and the others at most three; the question asks who won most often
    (RULER's frequent words). Metric: the answer states that name and none of the other four.
    """
    winner, *others = rng.sample(FILLER_WORDS["person"], PLAYERS)
    wins = {winner: MOST_WINS, **{name: rng.randint(1, MOST_WINS // 2) for name in others}}
    needles = [f"{name} won a game of chess." for name, n in wins.items() for _ in range(n)]
    rng.shuffle(needles)
    question = "Who won a game of chess most often?"
    return Quiz(needles, question, "Answer with one name.", (winner,), tuple(others), tuple(sorted(set(needles))))
