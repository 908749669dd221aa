"""Documents for the demo pair: records hidden in filler sentences, and one question about one record.

The demo models can do one task: read a document in which some sentences state a record, such as
"The price of the golden kettle is 4821.", and answer one question about one record. This module makes such documents.
`skim demo`, the benchmarks and the tests use it. Pure Python; a document is a function of its seed.
"""

import random
import re  # noqa: TID251  texts of our own
from dataclasses import dataclass


def words(text: str) -> tuple[str, ...]:
    """The words of `text`, as a tuple."""
    return tuple(text.split())


ADJECTIVES = words(
    """amber silver copper golden crimson violet emerald ivory scarlet indigo marble wooden crystal velvet rusty
    polished ancient broken hollow narrow heavy gentle hidden frozen painted striped dusty curved folded woven
    bronze quiet"""
)
NOUNS = words(
    """lantern kettle compass ladder mirror violin basket anchor hammer candle goblet feather saddle whistle
    trumpet blanket barrel chisel locket bucket parcel bottle statue button wagon helmet shovel pillow puzzle camera
    drum clock"""
)
ATTRIBUTES = ("passcode", "price", "weight", "number")
# Training uses these words in filler only, never in a record or a question: they measure generalisation to new words.
HELD_OUT_ADJECTIVES = ADJECTIVES[::6]
HELD_OUT_NOUNS = NOUNS[3::6]

_PEOPLE = words("Anna Peter Maria Thomas Clara Henry Lucy Oscar Nina Felix Rosa Victor Emma Hugo Iris Simon")
_PLACES = words(
    """market harbor library station garden bakery museum bridge chapel school tower mill forest river valley square"""
)
FILLER_WORDS = {
    "person": _PEOPLE,
    "friend": _PEOPLE,
    "place": _PLACES,
    "town": _PLACES,
    "food": words("bread apples cheese tea honey soup plums rice"),
    "animal": words("dog cat horse goat heron fox owl crow"),
    "time": words("morning afternoon evening night"),
    "weather": words("rain wind snow fog sunshine thunder"),
    "colour": words("green blue grey white"),
    "adjective": ADJECTIVES,
    "noun": NOUNS,
}
FILLER_SENTENCES = (
    "In the {time}, {person} walked to the {place} and bought some {food}.",
    "{person} met {friend} at the {place} and they talked about the {weather}.",
    "The {animal} slept near the {place} for most of the {time}.",
    "There was a lot of {weather} over the {place} in the {time}.",
    "{person} wrote a long letter to {friend} about the {place}.",
    "A {colour} boat waited under the old {place} all day.",
    "Nobody at the {place} had seen the {animal} since {time}.",
    "{person} gave the {animal} some {food} and went home.",
    "The road from the {place} to the {town} was closed because of the {weather}.",
    "{person} said that the {food} at the {place} was very good.",
    "They painted the door of the {place} {colour} last year.",
    "After the {weather}, the {animal} came back to the {place}.",
    "{person} and {friend} shared {food} with the children from the {place}.",
    "It was a calm {time}, and the {place} was almost empty.",
    "The {animal} chased a {colour} leaf across the {place}.",
    "{person} forgot the {food} on a bench near the {place}.",
    "Every {time}, a {animal} could be heard behind the {place}.",
    "The people of the {place} were proud of their {food}.",
)
# These sentences name a thing without a record of it, so that the words alone do not mark a record.
DISTRACTOR_SENTENCES = (
    "The {adjective} {noun} was left near the {place}.",
    "{person} carried the {adjective} {noun} to the {place}.",
)
QUESTION = "Question: {opening} the {order}{attribute} of the {adjective} {noun}?"
OPENING = "What is"

# Pieces of the demo tokenizer: a word with its leading space, two digits, one digit, punctuation, white space.
PIECE_PATTERN = r" ?[A-Za-z]+| ?\d{2}| ?\d| ?[^\sA-Za-z\d]+|\s"
_PIECES = re.compile(PIECE_PATTERN)
_TEMPLATE_TOKENS = 4  # <|bos|><|user|> before the message, <|end|><|assistant|> after it


@dataclass(frozen=True, slots=True)
class Record:
    """One fact of a document: `attribute` of the `adjective` `noun` is `value` (four digits)."""

    attribute: str
    adjective: str
    noun: str
    value: str

    def sentence(self) -> str:
        return f"The {self.attribute} of the {self.adjective} {self.noun} is {self.value}."

    def question(self, opening: str = OPENING, order: str = "", wording: str = QUESTION) -> str:
        """The question about this record. order: "", or "first" or "last" if two records have the same key."""
        return wording.format(
            opening=opening,
            order=f"{order} " if order else "",
            attribute=self.attribute,
            adjective=self.adjective,
            noun=self.noun,
        )


@dataclass(frozen=True, slots=True)
class DemoDocument:
    """A document, a question about one of its records, and the right answer.

    expected: four digits. record_sentence: the one sentence of `document` that answers the question.
    prompt_tokens: length of `messages` in the demo tokenizer, chat template included. records: all of the document's.
    """

    document: str
    question: str
    expected: str
    record_sentence: str
    prompt_tokens: int
    records: tuple[Record, ...]

    @property
    def prompt(self) -> str:
        """The user's message: the document, a line break, the question."""
        return f"{self.document}\n{self.question}"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The chat: a single user turn."""
        return [{"role": "user", "content": self.prompt}]

    def is_right(self, answer: str) -> bool:
        """Whether `answer` states the whole expected value and nothing else ("4821" or "4821.")."""
        return states(answer, self.expected)


def states(answer: str, value: str) -> bool:
    """Whether `answer` is the whole value and nothing else, with or without a full stop."""
    return answer.strip().rstrip(".") == value


def count_tokens(text: str) -> int:
    """Tokens of `text` in the demo tokenizer; exact for text made by this module, too few for unknown words."""
    return len(_PIECES.findall(text))


def filler_sentence(rng: random.Random) -> str:
    """One sentence without a record. A few of them name a thing that may have a record."""
    template = rng.choice(DISTRACTOR_SENTENCES) if rng.random() < 0.06 else rng.choice(FILLER_SENTENCES)
    chosen = {slot: rng.choice(FILLER_WORDS[slot]) for slot in re.findall(r"{(\w+)}", template)}
    return template.format(**chosen)


def make_document(tokens: int, seed: int = 0) -> DemoDocument:
    """A document whose chat prompt has `tokens` tokens or a few less; about a quarter of them belong to records.

    No two records name the same thing, and none uses a held-out word. The record that the question asks for is in the
    middle three fifths of the document. Raises ValueError for fewer than 100 tokens.
    """
    if tokens < 100:
        raise ValueError(f"a demo document needs at least 100 tokens, not {tokens}: ask for more")
    rng = random.Random(seed)
    adjectives = [word for word in ADJECTIVES if word not in HELD_OUT_ADJECTIVES]
    nouns = [word for word in NOUNS if word not in HELD_OUT_NOUNS]
    things = rng.sample([(a, n) for a in adjectives for n in nouns], k=min(650, max(2, tokens // 45)))
    records = [Record(rng.choice(ATTRIBUTES), a, n, f"{rng.randrange(10_000):04d}") for a, n in things]
    # All questions have the same length, and so have all records: the first one gives the space that is left.
    budget = tokens - _TEMPLATE_TOKENS - 1 - count_tokens(" " + records[0].question())
    sentences = [record.sentence() for record in records]
    used = sum(count_tokens(" " + sentence) for sentence in sentences)
    while True:
        sentence = filler_sentence(rng)
        used += count_tokens(" " + sentence)
        if used > budget:
            break
        sentences.append(sentence)
    rng.shuffle(sentences)

    middle = set(sentences[len(sentences) // 5 : -(len(sentences) // 5)])
    asked = next((record for record in records if record.sentence() in middle), records[0])
    document, question = " ".join(sentences), asked.question()
    prompt_tokens = _TEMPLATE_TOKENS + count_tokens(f" {document}\n{question}")
    return DemoDocument(document, question, asked.value, asked.sentence(), prompt_tokens, tuple(records))
