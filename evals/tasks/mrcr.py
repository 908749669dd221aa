"""MRCR: one of several like requests in a long conversation (arXiv 2409.12640, section 4.2; OpenAI's data set MRCR)."""

import random

from demo_models.documents import FILLER_WORDS, NOUNS, filler_sentence
from evals.tasks.metrics import after_prefix
from evals.tasks.quiz import Frame, Quiz

FORMS = ("letter", "news report", "diary entry", "speech", "short story", "poster")
ORDINALS = ("1st", "2nd", "3rd", "4th")
LIKE = 4
SENTENCES = 16
BREAK = "\n\n\n"


def mrcr(tokens: int, rng: random.Random) -> Quiz:
    """In a conversation of many requests to write something, four are the same; the last message asks for the text of
    one of them after a random prefix. The wording is that of OpenAI's MRCR with four needles. What differs: the texts
    are generated sentences in place of a model's, topics differ by one word, and no example stands first. Metric:
    0 without the prefix, else difflib's ratio of this text and the answer.
    """
    form, noun = rng.choice(FORMS), rng.choice(NOUNS)
    others = [(f, n) for f in FORMS for n in NOUNS if (f, n) != (form, noun)]
    asked, prefix = rng.randrange(LIKE), f"{rng.getrandbits(40):010x}"
    request = _request(form, noun)
    texts = [_text(form, noun, rng) for _ in range(LIKE)]
    question = (
        f"Prepend {prefix} to the {ORDINALS[asked]} (1 indexed) {form} about the {noun}. Do not include any other text"
        " in your response."
    )
    kinds = [rng.choice(others) for _ in range(1 + tokens // 100)]
    filler = tuple(f"{_request(*kind)}\n{_text(*kind, rng)}" for kind in kinds)
    frame = Frame(filler=filler, joint=BREAK, dialogue=True)
    needles, evidence = [f"{request}\n{text}" for text in texts], (request, texts[asked])
    return Quiz(needles, question, "", (prefix, texts[asked]), (), evidence, frame, after_prefix)


def _request(form: str, noun: str) -> str:
    return f"Write a {form} about the {noun}."


def _text(form: str, noun: str, rng: random.Random) -> str:
    place = rng.choice(FILLER_WORDS["place"])
    sentences = [filler_sentence(rng) for _ in range(SENTENCES)]
    return " ".join([f"This {form} is about the {noun} of the {place}.", *sentences])
