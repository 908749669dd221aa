"""Edits of code: an agent reads files, and rewrites one of their functions in each turn. Tests run what it writes."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from textwrap import dedent

from evals.agents.conversation import Conversation, Turn, said
from evals.agents.execute import code_of, passes
from evals.tasks.metrics import Scheme
from evals.tasks.quiz import Quiz
from evals.tasks.source_texts import some_code

ANSWER = 320
"""Tokens of a whole function, at most."""
BACK = 2
"""Every second turn edits a file that was read so many results before the latest one; the others edit the latest."""

PLACES = (
    *("lagos", "lima", "oslo", "perth", "porto", "quito", "riga", "turin", "bergen", "cairo", "dakar", "hanoi"),
    *("izmir", "jaffa", "kyoto", "leeds"),
)
WORDS = ("alder", "birch", "cedar", "elm", "hazel", "larch", "maple", "oak", "pine", "rowan", "spruce", "willow")

_SYSTEM = (
    "You are an agent that edits Python code. Tools read files for you. You answer with the whole new function in one"
    " code block, and write nothing else."
)


@dataclass(frozen=True, slots=True)
class Edit:
    """source: the function as it is. wish: how it is to change, after "so that". right: a function that fulfils it.
    tests: statements that fail for `source` and pass for `right`.
    """

    name: str
    source: str
    wish: str
    right: str
    tests: str


def edit(turns: int, tokens: int, rng: random.Random) -> Conversation:
    """An agent reads one file of Python functions after the other, and rewrites a function in each turn: one of the
    latest file, or in every second turn one of the second file before it. Metric: the tests of the new function pass.
    """
    places = rng.sample(PLACES, turns)
    kinds = [kind for _ in range(turns) for kind in rng.sample(EDITS, len(EDITS))][:turns]
    # In each file a function that is asked for at once, and one that is asked for BACK turns later.
    first = [kind(place, rng) for kind, place in zip(kinds, places, strict=True)]
    later = [kind(f"{place}_old", rng) for kind, place in zip(reversed(kinds), places, strict=True)]
    made = []
    for number in range(turns):
        asked = number - BACK if number % 2 and number >= BACK else number
        wanted = later[asked] if asked < number else first[number]
        wish = f"rewrite the function `{wanted.name}` of file_{asked + 1}.py so that {wanted.wish}"
        evidence = (wanted.source,)
        quiz = Quiz([], wish, "", (wanted.right,), (), evidence, metric=partial(tests_pass, wanted.tests))
        request = f"Read file_{number + 1}.py. Then {wish} Answer with the whole function in one code block."
        needles = [first[number].source, later[number].source]
        rng.shuffle(needles)
        path = {"path": f"file_{number + 1}.py"}
        made.append(Turn(request, ("read_file", path), needles, quiz, said(f"```python\n{wanted.right}\n```")))
    filler = iter(some_code(tokens, rng))
    return Conversation(_SYSTEM, made, filler, "\n\n\n", ANSWER)


def tests_pass(tests: str, quiz: Scheme, answer: str) -> float:
    """1 if the answer's code passes the tests, else 0."""
    return float(passes(code_of(answer), tests))


def _tariff(place: str, rng: random.Random) -> Edit:
    limits, cents = sorted(rng.sample(range(10, 900), 4)), sorted(rng.sample(range(80, 990), 5))
    name, steps = f"postage_{place}", list(zip(limits, cents, strict=False))
    before = f'''\
    def {name}(weight):
        """The postage in cents for a weight in grams."""
        steps = {steps}
    '''
    after = f"""\
        for limit, cents in steps:
            if weight <= limit:
                return cents
        return {cents[-1]}
    """
    check = '    if weight <= 0:\n        raise ValueError("no weight")\n'
    tests = [f"assert {name}({limit}) == {price}" for limit, price in steps]
    tests += [f"assert {name}({limit + 1}) == {price}" for limit, price in zip(limits, cents[1:], strict=True)]
    tests += [_raises("ValueError", f"{name}(0)"), _raises("ValueError", f"{name}(-5)")]
    wish = "it raises ValueError for a weight of 0 or less, and is as before for all others."
    return _edit(name, before + after, wish, dedent(before) + check + _indented(after), tests)


def _lookup(place: str, rng: random.Random) -> Edit:
    codes = dict(zip(rng.sample(WORDS, 5), rng.sample(range(100, 999), 5), strict=True))
    name, missing = f"code_{place}", rng.randint(1, 99)
    source = f'''\
    def {name}(wood):
        """The number that the stock list has for a kind of wood."""
        numbers = {codes}
        return numbers[wood]
    '''
    right = source.replace("numbers[wood]", f"numbers.get(wood, {missing})")
    tests = [f"assert {name}({wood!r}) == {number}" for wood, number in codes.items()]
    wish = f"it returns {missing} for a kind of wood that is not listed, in place of a KeyError."
    return _edit(name, source, wish, right, [*tests, f"assert {name}('plastic') == {missing}"])


def _weights(place: str, rng: random.Random) -> Edit:
    weights = rng.sample(range(2, 60), 5)
    name, readings = f"level_{place}", rng.sample(range(1, 40), 5)
    source = f'''\
    def {name}(readings):
        """The sum of five readings, each multiplied by the weight of its place."""
        weights = {weights}
        total = 0
        for place in range(len(weights) - 1):
            total += weights[place] * readings[place]
        return total
    '''
    right = source.replace("range(len(weights) - 1)", "range(len(weights))")
    total = sum(a * b for a, b in zip(weights, readings, strict=True))
    tests = [f"assert {name}({readings}) == {total}", f"assert {name}([0, 0, 0, 0, 1]) == {weights[-1]}"]
    return _edit(name, source, "it counts the last reading, too: now it leaves that one out.", right, tests)


def _label(place: str, rng: random.Random) -> Edit:
    name, prefix, digits = f"label_{place}", "".join(rng.sample("BCDFGHJKLMNPQRSTVWXZ", 3)), rng.randint(4, 7)
    source = f'''\
    def {name}(code, number):
        """The label of a box."""
        prefix = "{prefix}"
        return f"{{prefix}}-{{code}}-{{number:0{digits}}}"
    '''
    right = source.replace("{code}", "{code.upper()}")
    shown = f"{rng.randint(1, 999):0{digits}}"
    labels = {code: f"{prefix}-{code.upper()}-{shown}" for code in ("ab", "Xy", "Q")}
    tests = [f"assert {name}({code!r}, {int(shown)}) == {label!r}" for code, label in labels.items()]
    return _edit(name, source, "the code stands in upper case in the label, however it is given.", right, tests)


def _price(place: str, rng: random.Random) -> Edit:
    name, percent, fee = f"price_{place}", rng.randint(101, 130), rng.randint(11, 99)
    source = f'''\
    def {name}(cents):
        """The price of a parcel with tax and the fee of the office."""
        return cents * {percent} // 100 + {fee}
    '''
    right = source.replace("(cents):", "(cents, discount=0):").replace("cents * ", "(cents - discount) * ")
    tests = []
    for cents, discount in ((1000, 0), (2345, 200), (999, 99)):
        wanted = (cents - discount) * percent // 100 + fee
        tests.append(f"assert {name}({cents}, discount={discount}) == {wanted}")
    tests.append(f"assert {name}(500) == {500 * percent // 100 + fee}")
    wish = "it takes a second parameter `discount`, 0 by default, which is subtracted from `cents` before all else."
    return _edit(name, source, wish, right, tests)


def _filter(place: str, rng: random.Random) -> Edit:
    skipped = rng.sample(WORDS, 4)
    name, others = f"words_{place}", [word for word in WORDS if word not in skipped]
    source = f'''\
    def {name}(words):
        """The words without those that are in no catalogue."""
        skipped = {skipped}
        return [word for word in words if word not in skipped]
    '''
    right = source.replace("if word not in", "if word.lower() not in")
    given = [others[0].upper(), *(word.capitalize() for word in skipped), others[1], skipped[0]]
    tests = [f"assert {name}({given}) == {[others[0].upper(), others[1]]}"]
    tests += [f"assert {name}([{word!r}]) == []" for word in skipped]
    wish = "it skips these words in capitals, too. The words that stay are unchanged."
    return _edit(name, source, wish, right, tests)


EDITS: tuple[Callable[[str, random.Random], Edit], ...] = (_tariff, _lookup, _weights, _label, _price, _filter)
"""The kinds of edits. Each has values that only the function's source has."""


def _edit(name: str, source: str, wish: str, right: str, tests: list[str]) -> Edit:
    return Edit(name, dedent(source).strip(), wish, dedent(right).strip(), "\n".join(tests))


def _indented(text: str) -> str:
    """The rest of a function, with the indentation of its body."""
    return "".join(f"{line[4:]}\n" for line in text.splitlines() if line.strip())


def _raises(error: str, call: str) -> str:
    return f"try:\n    {call}\nexcept {error}:\n    pass\nelse:\n    raise AssertionError({call!r})"
