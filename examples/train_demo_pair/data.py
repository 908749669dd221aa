"""Training and test prompts: documents with records (`demo_models.documents`), then questions about them.

Training leaves out, so that tests can measure generalisation:
- HELD_OUT words in records and questions; they occur only in filler sentences.
- NEW words everywhere.
- HELD_OUT_OPENINGS of questions.
"""

import random
from dataclasses import dataclass, field, replace

import numpy as np
import tokenizer
from tokenizer import ASSISTANT, BOS, END, USER, encode

from demo_models import documents as demo
from demo_models.documents import Record

OPENINGS = (
    "What is",
    "Tell me",
    "Please say",
    "Give me",
    "Show me",
    "Please tell me",
    "Now write",
    "I need",
    "Can I please see",
    "Read the notes and then tell me",
)
HELD_OUT_OPENINGS = ("Do you know", "Could you find", "We want to know")

NEW_ADJECTIVES, NEW_NOUNS = tokenizer.MORE_ADJECTIVES[::6], tokenizer.MORE_NOUNS[3::6]


def _without(words: tuple[str, ...], *held_out: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in words if not any(word in some for some in held_out))


# The words of records: (adjectives, nouns) by kind.
_FILLER_NAMES = tuple(word for slot in ("food", "animal", "weather", "place") for word in demo.FILLER_WORDS[slot])
_POOL = (
    *_without(demo.ADJECTIVES, demo.HELD_OUT_ADJECTIVES),
    *_without(demo.NOUNS, demo.HELD_OUT_NOUNS),
    *_without(tokenizer.MORE_ADJECTIVES, NEW_ADJECTIVES),
    *_without(tokenizer.MORE_NOUNS, NEW_NOUNS),
    *_FILLER_NAMES,
)
WORDS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "demo": (_without(demo.ADJECTIVES, demo.HELD_OUT_ADJECTIVES), _without(demo.NOUNS, demo.HELD_OUT_NOUNS)),
    "pool": (_POOL, _POOL),
    "held_out": (demo.HELD_OUT_ADJECTIVES, demo.HELD_OUT_NOUNS),
    "new": (NEW_ADJECTIVES, NEW_NOUNS),
}
MOST_EASY_RECORDS = 25


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parameters of one prompt.

    words: the words of records (a key of WORDS). asked_words: the same for the eight things that the questions ask for,
    if different. unique_nouns: no noun names two things, and there are at most 25 records (easy); else nouns and
    adjectives repeat (hard). density: share of the document's tokens that belong to records. two_attributes: share of
    records whose thing has a second record with another attribute. duplicates: share of records that occur twice with
    different values. ask_duplicates: ask for these (True), for the others (False) or for any (None). gap_probability:
    probability that the positions have gaps between sentences, as in a kept prompt; they stay below `longest`.
    """

    density: float = 0.25
    questions: int = 1
    words: str = "demo"
    asked_words: str | None = None
    unique_nouns: bool = False
    two_attributes: float = 0.4
    duplicates: float = 0.0
    ask_duplicates: bool | None = None
    openings: tuple[str, ...] = OPENINGS
    wording: str = demo.QUESTION
    gap_probability: float = 0.0
    longest: int = 0


@dataclass(slots=True)
class Asked:
    """One question of a prompt: its record, and the half-open token ranges of its answer and of its record.

    order: "first" or "last" if two records have the same key, else "".
    """

    record: Record
    question: str
    order: str
    answer: tuple[int, int]
    span: tuple[int, int]


@dataclass(slots=True)
class Prompt:
    """Token ids, their positions (same length), and the questions. context: tokens before the first question."""

    ids: list[int]
    positions: np.ndarray
    context: int = 0
    asked: list[Asked] = field(default_factory=list)


def _things(count: int, recipe: Recipe, rng: random.Random) -> list[tuple[str, str]]:
    """`count` different (adjective, noun) pairs; fewer if there are not enough words."""

    def draw(words: str, wanted: int) -> list[tuple[str, str]]:
        adjectives, nouns = WORDS[words]
        if words == "pool":  # few words per document, so that things often share one word
            size = min(len(nouns) // 2, max(8, int(2 * wanted**0.5) + rng.randrange(12)))
            chosen = rng.sample(nouns, 2 * size)
            adjectives, nouns = tuple(chosen[:size]), tuple(chosen[size:])
        if recipe.unique_nouns:
            return [(rng.choice(adjectives), noun) for noun in rng.sample(nouns, min(wanted, len(nouns)))]
        picks = rng.sample(range(len(adjectives) * len(nouns)), min(wanted, len(adjectives) * len(nouns)))
        return [(adjectives[pick // len(nouns)], nouns[pick % len(nouns)]) for pick in picks]

    first = draw(recipe.asked_words, min(8, count)) if recipe.asked_words else []
    return first + [thing for thing in draw(recipe.words, count) if thing not in first][: count - len(first)]


def _value(rng: random.Random) -> str:
    return f"{rng.randrange(10_000):04d}"


def _records(count: int, recipe: Recipe, rng: random.Random) -> tuple[list[Record], set[int]]:
    """The records, and the indices of those that occur twice. The first records use the asked words."""
    records = [Record(rng.choice(demo.ATTRIBUTES), *thing, _value(rng)) for thing in _things(count, recipe, rng)]
    front, back = 0, len(records) - 1
    doubled: set[int] = set()
    for _ in range(int(recipe.two_attributes * count / 2 + rng.random())):
        if front < back:
            other = rng.choice([a for a in demo.ATTRIBUTES if a != records[front].attribute])
            records[back] = replace(records[front], attribute=other, value=_value(rng))
            front, back = front + 1, back - 1
    twins = int(recipe.duplicates * count / 2 + rng.random()) if recipe.duplicates else 0
    for _ in range(max(twins, 1 if recipe.ask_duplicates else 0)):
        if front < back:
            records[back] = replace(records[front], value=_value(rng))
            doubled |= {front, back}
            front, back = front + 1, back - 1
    return records, doubled


def _gaps(starts: list[int], tokens: int, recipe: Recipe, longest: int, rng: random.Random) -> np.ndarray:
    """Shift [tokens] of each position. It grows at some sentence `starts`, to at most `longest` - `tokens`."""
    shift = np.zeros(tokens, dtype=np.int64)
    room = longest - tokens
    if room > 0 and rng.random() < recipe.gap_probability:
        total = int(room * rng.random() ** 2)
        places = sorted(rng.sample(starts, k=rng.randrange(1, max(2, len(starts) // 2))))
        jumps = sorted(rng.randrange(total + 1) for _ in places)
        for place, jump in zip(places, jumps, strict=True):
            shift[place:] = jump
    return shift


def make_prompt(length: int, recipe: Recipe, rng: random.Random) -> Prompt:
    """A prompt of at most `length` tokens. Each question is followed by its answer and END."""
    budget = length - 22 * recipe.questions - 4
    most = MOST_EASY_RECORDS if recipe.unique_nouns else 600
    count = max(2, min(most, round(budget * recipe.density / 10.5)))
    records, doubled = _records(count, recipe, rng)
    items: list[tuple[int | None, list[int]]] = [(i, encode(f" {r.sentence()}")) for i, r in enumerate(records)]
    used = sum(len(tokens) for _, tokens in items)
    while True:
        sentence = encode(f" {demo.filler_sentence(rng)}")
        used += len(sentence)
        if used > budget - 2:
            break
        items.append((None, sentence))
    rng.shuffle(items)

    ids = [BOS, USER]
    starts = []
    spans: dict[int, tuple[int, int]] = {}
    for index, tokens in items:
        if len(ids) + len(tokens) > budget:
            continue
        if index is not None:
            spans[index] = (len(ids), len(ids) + len(tokens))
        starts.append(len(ids))
        ids += tokens
    prompt = Prompt(ids, np.empty(0), context=len(ids))
    _ask(prompt, records, doubled, spans, recipe, length, rng)
    shift = _gaps(starts, prompt.context, recipe, recipe.longest or length, rng)
    after = np.full(len(ids) - prompt.context, shift[-1])
    prompt.positions = np.arange(len(ids)) + np.concatenate([shift, after])
    return prompt


def _ask(
    prompt: Prompt,
    records: list[Record],
    doubled: set[int],
    spans: dict[int, tuple[int, int]],
    recipe: Recipe,
    length: int,
    rng: random.Random,
) -> None:
    """Append the questions and their answers to `prompt`."""
    askable = list(spans)
    if recipe.ask_duplicates is not None:
        askable = [i for i in askable if (i in doubled) == recipe.ask_duplicates] or askable
    if recipe.asked_words:
        adjectives, nouns = WORDS[recipe.asked_words]
        askable = [i for i in askable if records[i].adjective in adjectives and records[i].noun in nouns] or askable
    # No record is asked for twice: the model could copy the earlier answer.
    for turn, index in enumerate(rng.sample(askable, min(recipe.questions, len(askable)))):
        record, order = records[index], ""
        starts = [spans[i][0] for i in spans if records[i].sentence()[:-6] == record.sentence()[:-6]]
        if len(starts) > 1:
            order = "first" if spans[index][0] == min(starts) else "last"
        question = record.question(rng.choice(recipe.openings), order, recipe.wording)
        answer = encode(f" {record.value}.")
        turn_ids = [*([USER] if turn else []), *encode(f"{' ' if turn else chr(10)}{question}"), END, ASSISTANT]
        if len(prompt.ids) + len(turn_ids) + len(answer) + 1 > length:
            break
        prompt.ids += turn_ids
        prompt.asked.append(
            Asked(record, question, order, (len(prompt.ids), len(prompt.ids) + len(answer)), spans[index])
        )
        prompt.ids += [*answer, END]


# Kinds of tokens in a batch; 0 is padding. CLOSING: the full stop and END of an answer.
CONTEXT, CLOSING, ANSWER, ORDERED_ANSWER = range(1, 5)


def make_batch(
    size: int, length: int, recipes: list[Recipe], rng: random.Random
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids, positions and kinds, each int64 [size, length]. Each prompt uses a random one of `recipes`."""
    ids, positions, kinds = (np.zeros((size, length), dtype=np.int64) for _ in range(3))
    for row in range(size):
        recipe = replace(rng.choice(recipes), density=rng.choice([0.1, 0.25, 0.5, 0.8]))
        prompt = make_prompt(length, recipe, rng)
        n = len(prompt.ids)
        ids[row, :n] = prompt.ids
        positions[row, :n] = prompt.positions
        positions[row, n:] = prompt.positions[-1]
        kinds[row, :n] = CONTEXT
        for asked in prompt.asked:
            start, stop = asked.answer
            kinds[row, start : stop - 1] = ORDERED_ANSWER if asked.order else ANSWER
            kinds[row, stop - 1 : stop + 1] = CLOSING
    return ids, positions, kinds
