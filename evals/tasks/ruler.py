"""RULER's eleven generated tasks (arXiv 2404.06654, sections 3 and 4; repository NVIDIA/RULER, data/synthetic).

Names, templates, settings and metric are RULER's. As RULER does for chat endpoints, the user's message ends with the
beginning of the answer. What differs: the essays are the prose of `source_texts` in place
of Paul Graham's; words come from lists of this project and that prose; needles stand at any depth, not at 40. qa_1 and
qa_2 are left out, because they need SQuAD and HotpotQA, and with them their metric, string_match_part.
"""

import random
import re
import string
import uuid
from collections.abc import Callable
from functools import cache
from itertools import chain, cycle, islice
from math import pi
from typing import Literal

from demo_models.documents import ADJECTIVES, FILLER_WORDS, NOUNS
from evals.tasks.metrics import string_match_all
from evals.tasks.quiz import CONTEXT, Frame, Quiz
from evals.tasks.source_texts import paragraphs

NOISE = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
NEEDLE = "One of the special magic {kind} for {key} is: {value}."
SEVERAL = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. I will quiz you about"
    " the {kind} afterwards.\n{context}\nWhat are all the special magic {kind} for {query} mentioned in the provided"
    " text? The special magic {kind} for {query} mentioned in the provided text are"
)
ONE = SEVERAL.replace("Some", "A").replace("are all", "is").replace("are", "is")
CHAINS = (
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n{context}\nQuestion: Find"
    " all variables that are assigned the value {query} in the text above. Answer: According to the chain(s) of"
    " variable assignment in the text above, {count} variables are assgined the value {query}, they are:"
)
COMMON = (
    "Below is a numbered list of words. In these words, some appear more often than others. Memorize the ones that"
    " appear most often.\n{context}\nQuestion: What are the 10 most common words in the above list? Answer: The top 10"
    " words that appear most often in the list are:"
)
CODED = (
    "Read the following coded text and track the frequency of each coded word. Find the three most frequently appeared"
    " coded words. {context}\nQuestion: Do not provide any explanation. Please ignore the dots '....'. What are the"
    " three most frequently appeared words in the above coded text? Answer: According to the coded text above, the"
    " three most frequently appeared words are:"
)
HOPS = 4
EXAMPLE_NOISE = 14
"""Noise sentences of the example of `vt`, which RULER makes of 500 tokens."""
COMMON_WORDS = 10
ZETA_OF_2 = pi**2 / 6

Values = Literal["numbers", "uuids"]
Haystack = Literal["noise", "essay", "needle"]


def _niah(
    haystack: Haystack, values: Values = "numbers", keys: str = "words", others: int = 0, asked: int = 1, each: int = 1
) -> Callable[[int, random.Random], Quiz]:
    """A needle task. others: needles with keys that are not asked for. asked: keys. each: values of a key."""

    def make(tokens: int, rng: random.Random) -> Quiz:
        found = _keys(rng, keys, asked + others)
        pairs = [(key, _value(values, rng)) for key in found for _ in range(each)]
        needles = [NEEDLE.format(kind=values, key=key, value=value) for key, value in pairs]
        parts, joint = _haystack(haystack, tokens, (keys, values), set(found), rng)
        one, last = asked * each == 1, found[asked - 1]
        query = last if asked == 1 else f"{', '.join(found[: asked - 1])}, and {last}"
        kind = values[:-1] if one else values
        template = (ONE if one else SEVERAL).format(kind=kind, query=query, context=CONTEXT)
        evidence = tuple(needles[: asked * each])
        expected = tuple(value for _, value in pairs[: asked * each])
        rng.shuffle(needles)
        question = template.split(f"{CONTEXT}\n")[1]
        frame = Frame(filler=parts, joint=joint, template=template, limit=128)
        return Quiz(needles, question, "", expected, evidence=evidence, frame=frame, metric=string_match_all)

    make.__doc__ = (
        f"Keys ({keys}): {asked + others}; values ({values}) of each: {each}; keys that are asked for: {asked}; among"
        f" {_HAYSTACKS[haystack]}. Metric: string_match_all, the share of the values in the answer."
    )
    return make


_HAYSTACKS = {"noise": "a repeated noise sentence", "essay": "essays", "needle": "needles with other keys"}

NIAH = {
    "niah_single_1": _niah("noise"),
    "niah_single_2": _niah("essay"),
    "niah_single_3": _niah("essay", "uuids"),
    "niah_multikey_1": _niah("essay", others=3),
    "niah_multikey_2": _niah("needle"),
    "niah_multikey_3": _niah("needle", "uuids", keys="uuids"),
    "niah_multivalue": _niah("essay", each=4),
    "niah_multiquery": _niah("essay", asked=4),
}


def vt(tokens: int, rng: random.Random) -> Quiz:
    """Variable tracking: a chain of five assignments in noise, after an example; the question asks for the variables
    with the value. Metric: string_match_all, the share of the five names in the answer.
    """
    value, names, links = _chain(5, rng)
    shown, example, steps = _chain(3, rng)
    mixed = [NOISE] * EXAMPLE_NOISE
    for at, step in zip(sorted(rng.sample(range(EXAMPLE_NOISE), HOPS + 1), reverse=True), reversed(steps), strict=True):
        mixed.insert(at, step)
    before = CHAINS.format(context="\n".join(mixed), query=shown, count=HOPS + 1)
    template = CHAINS.format(context=CONTEXT, query=value, count=HOPS + 1)
    question = template.split("\nQuestion: ")[1]
    whole = f"{before} {' '.join(example)}\n\n{template}"
    frame = Frame(filler=(NOISE,) * tokens, joint="\n", template=whole, limit=30)
    return Quiz(links, question, "", names, evidence=tuple(links), frame=frame, metric=string_match_all)


def cwe(tokens: int, rng: random.Random) -> Quiz:
    """Common words extraction: ten words 30 times each among words 3 times each, after an example. Metric:
    string_match_all, the share of the ten words in the answer.
    """
    times, size, of_example = ((30, 3), 40, (10, 3)) if tokens >= 4096 else ((6, 1), 20, (3, 1))
    # A common word that begins another word could not be found again as evidence.
    common, seed = rng.sample(_whole_words(), COMMON_WORDS), rng.random()
    others = [word for word in rng.sample(_words(), len(_words())) if word not in common]
    shown, rare = others[:size], others[size:]
    listed = _numbered(shown[:COMMON_WORDS], shown[COMMON_WORDS:], of_example, rng)
    answer = " ".join(f"{at}. {word}" for at, word in enumerate(shown[:COMMON_WORDS], 1))

    def document(size: int) -> str:
        if size > len(rare):
            raise ValueError("there are not enough words: ask for shorter prompts")
        return _numbered(common, rare[:size], times, random.Random(seed))

    template = f"{COMMON.replace(CONTEXT, listed)} {answer}\n{COMMON}"
    evidence = tuple(f". {word}" for word in common)
    frame = Frame(template=template, sized=document, limit=120)
    question = COMMON.split("\nQuestion: ")[1]
    return Quiz([], question, "", tuple(common), evidence=evidence, frame=frame, metric=string_match_all)


def fwe(tokens: int, rng: random.Random) -> Quiz:
    """Frequent words extraction: coded words whose counts fall with the square of their rank; the most frequent one is
    dots. Metric: string_match_all, the share of the three next words in the answer.
    """
    words = ["...", *_codes(max(8, tokens // 50), rng)]
    seed = rng.random()

    def document(size: int) -> str:
        counts = [int(size / (rank**2 * ZETA_OF_2)) for rank in range(1, len(words) + 1)]
        coded = [word for word, count in zip(words, counts, strict=True) for _ in range(count)]
        random.Random(seed).shuffle(coded)
        return " ".join(coded)

    top, question = tuple(words[1:4]), CODED.split("\nQuestion: ")[1]
    frame = Frame(template=CODED, sized=document, limit=50)
    return Quiz([], question, "", top, evidence=top, frame=frame, metric=string_match_all)


RULER: dict[str, Callable[[int, random.Random], Quiz]] = {**NIAH, "vt": vt, "cwe": cwe, "fwe": fwe}


def _keys(rng: random.Random, kind: str, count: int) -> list[str]:
    if kind == "uuids":
        return [_value("uuids", rng) for _ in range(count)]
    things = (*NOUNS, *FILLER_WORDS["place"], *FILLER_WORDS["animal"])
    return rng.sample([f"{adjective}-{thing}" for adjective in ADJECTIVES for thing in things], count)


def _value(kind: str, rng: random.Random) -> str:
    if kind == "uuids":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return str(rng.randint(1_000_000, 9_999_999))


def _haystack(
    kind: Haystack, tokens: int, needle: tuple[str, Values], known: set[str], rng: random.Random
) -> tuple[tuple[str, ...], str]:
    """The parts around the needles, enough for `tokens` tokens, and what joins them. known: keys of the needles."""
    if kind == "noise":
        return (NOISE,) * tokens, "\n"
    if kind == "essay":
        mixed = rng.sample(paragraphs(), len(paragraphs()))
        sentences = [sentence for part in mixed for sentence in re.split(r"(?<=[.!?]) ", part)]
        return tuple(islice(cycle(sentences), tokens)), " "
    keys, values = needle
    found = list(chain.from_iterable(_keys(rng, keys, 100) for _ in range(1 + tokens // 1000)))
    return tuple(NEEDLE.format(kind=values, key=k, value=_value(values, rng)) for k in found if k not in known), "\n"


def _chain(letters: int, rng: random.Random) -> tuple[int, tuple[str, ...], list[str]]:
    """A value, the names of the variables that hold it, and their assignments."""
    value, names = rng.randint(10_000, 99_999), tuple(_codes(HOPS + 1, rng, letters, string.ascii_uppercase))
    sources = [str(value), *(f"VAR {name}" for name in names)]
    return value, names, [f"VAR {name} = {source}" for name, source in zip(names, sources, strict=False)]


def _codes(count: int, rng: random.Random, letters: int = 6, alphabet: str = string.ascii_lowercase) -> list[str]:
    """Different random words."""
    found: dict[str, None] = {}
    while len(found) < count:
        found["".join(rng.choices(alphabet, k=letters))] = None
    return list(found)


def _numbered(common: list[str], rare: list[str], times: tuple[int, int], rng: random.Random) -> str:
    """A numbered list with the words of both lists so many times each."""
    words = [*common * times[0], *rare * times[1]]
    rng.shuffle(words)
    return " ".join(f"{at}. {word}" for at, word in enumerate(words, 1))


@cache
def _words() -> tuple[str, ...]:
    """The words of the essays, with three letters and more."""
    return tuple(sorted({word for part in paragraphs() for word in re.findall(r"\b[a-z]{3,}\b", part)}))


@cache
def _whole_words() -> tuple[str, ...]:
    """Those that no other word begins with. In sorted order, such a word would be the next one."""
    words = _words()
    return tuple(word for word, after in zip(words, (*words[1:], ""), strict=True) if not after.startswith(word))
