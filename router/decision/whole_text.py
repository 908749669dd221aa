"""Whether a task needs the whole text: a linear classifier over the n-grams of its characters and words.

A translation, a summary, a count or a correction of all errors needs every part of a text; a question about a spot
needs one. The classifier knows the words for both in the languages of `evals/guard/wordings.txt`, from which
`python -m evals.guard.train` makes its weights, and looks at nothing but the words of the task.

Each sentence has a score of its own, and the highest counts: of a question and rules for its answer, no sentence is a
task for the whole text.
"""

import unicodedata
import zlib
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import re2

from kv_transfer.arrays import Float32Array

BITS = 18
BUCKETS = 1 << BITS
"""Weights. An n-gram has the weight that stands at its hash."""

MOST_CHARS = 2000
"""Of a longer task the first and the last characters are read, half of these each."""

WEIGHTS = Path(__file__).with_name("whole_text.npz")

_ORDERS = range(1, 7)
_SPACE = "\\t-\\r\\x1c-\\x20\\x85\\pZ"
_SENTENCES = re2.compile(
    f"([!?\u061f\u0964\u0965\u3002])[{_SPACE}]*|([\\pL\\pN_][\\pL\\pN_][\\pL\\pN_]\\.)[{_SPACE}]+|\n+"
)
_MARKS = (
    "!-/:-@\\[-`{-~\u00a1\u00ab\u00bb\u00bf\u2010-\u2027\u2039\u203a"
    "\u060c\u061b\u061f\u0964\u0965\u3001\u3002\u300c-\u300f"
)
"""Punctuation that NFKC leaves, in a character class."""
_WORDS = re2.compile(f"[{_MARKS}]|[^{_SPACE}{_MARKS}]+")
_DIGITS = re2.compile(r"\p{Nd}+")

IntArray = npt.NDArray[np.int64]


Weights = tuple[Float32Array, float]
"""Those of the n-grams by their bucket, float32 [BUCKETS], and the bias of each sentence's score."""


@cache
def weights() -> Weights:
    """Those of the package: 8-bit integers and their scale."""
    with np.load(WEIGHTS, allow_pickle=False) as saved:
        return saved["weights"].astype(np.float32) * saved["scale"], float(saved["bias"])


def whole_text_score(text: str) -> float:
    """The score of the sentence that most needs the whole text; -inf without a sentence. Over 0, it is one."""
    buckets, sentences = features(text)
    if not buckets.size:
        return -np.inf
    by_bucket, bias = weights()
    sums, counts = np.bincount(sentences, by_bucket[buckets]), np.bincount(sentences)
    return float((sums / np.sqrt(np.maximum(counts, 1)) + np.where(counts > 0, bias, -np.inf)).max())


def features(text: str) -> tuple[IntArray, IntArray]:
    """The bucket and the sentence of each n-gram of a task's sentences: of 1 to 6 characters, of one word, and of two
    words with at most one between."""
    if len(text) > MOST_CHARS:
        text = f"{text[: MOST_CHARS // 2]}\n{text[-MOST_CHARS // 2 :]}"
    plain = _DIGITS.sub("0", unicodedata.normalize("NFKC", text).lower())
    parts = _SENTENCES.sub(r"\1\2\n", plain).split("\n")
    sentences = [_WORDS.findall(part) for part in parts if any(map(str.isalpha, part))]
    if not sentences:
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    grams = [*_character_grams(sentences), *_word_grams(sentences)]
    buckets, of_sentence = zip(*grams, strict=True)
    return np.concatenate(buckets), np.concatenate(of_sentence)


def _character_grams(sentences: list[list[str]]) -> list[tuple[IntArray, IntArray]]:
    joined = "".join(f"\n {' '.join(words)} " for words in sentences)
    codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32).astype(np.uint64)
    sentence = np.cumsum(codes == ord("\n")) - 1
    parts, gram = [], np.zeros(codes.size, np.uint64)
    for order in _ORDERS:
        if order > codes.size:
            break
        last = codes.size - order + 1
        gram = gram[:last] * np.uint64(1000003) + codes[order - 1 :]
        inside = (sentence[:last] == sentence[order - 1 :]) & (codes[:last] != ord("\n"))
        parts.append((_bucket(gram[inside], order), sentence[:last][inside]))
    return parts


def _word_grams(sentences: list[list[str]]) -> list[tuple[IntArray, IntArray]]:
    words = [["^", *found, "$"] for found in sentences]
    sentence = np.repeat(np.arange(len(words)), [len(found) for found in words])
    code = np.array([zlib.crc32(word.encode("utf-8", "surrogatepass")) for found in words for word in found], np.uint64)
    parts = [(_bucket(code, 11), sentence)]
    for apart in (1, 2):
        inside = sentence[:-apart] == sentence[apart:]
        pair = code[:-apart] * np.uint64(1000033) + code[apart:]
        parts.append((_bucket(pair[inside], 11 + apart), sentence[:-apart][inside]))
    return parts


def _bucket(gram: npt.NDArray[np.uint64], kind: int) -> IntArray:
    """The finalizer of MurmurHash3, which mixes all bits into the lowest."""
    mixed = gram * np.uint64(31) + np.uint64(kind)
    mixed ^= mixed >> np.uint64(33)
    mixed *= np.uint64(0xFF51AFD7ED558CCD)
    mixed ^= mixed >> np.uint64(33)
    return (mixed & np.uint64(BUCKETS - 1)).astype(np.int64)
