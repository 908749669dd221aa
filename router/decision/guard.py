"""The guard: under `enabled: auto`, a prompt whose task needs its whole text runs dense.

To quote, translate, rewrite, summarise, convert, correct, compare, continue, count, list or sort needs most of a text,
or all of it to the letter. A linear classifier over the n-grams of characters and words knows such tasks by their
words, in the languages of `evals/guard/wordings.txt`; `python -m evals.guard.train` makes its weights. Each sentence of
a task has a score, and the highest counts: of a question and rules for its answer, none is over 0.

An explicit wish is obeyed: the guard does nothing for a request with `enabled: always`, or with a keep rate or a
coverage of its own, be it for one role, range or content.

Catch-up measures how often the dense model would have given the same answer as a selection did (`Agreements`). Where
the answers to a client's prompts of one shape differ too often, `auto` runs that kind dense.
"""

import unicodedata
import zlib
from collections import Counter, defaultdict
from functools import cache, partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import re2

from kv_transfer.arrays import Float32Array
from kv_transfer.options import AUTO
from router.decision.conversations import Client
from router.decision.decaying_mean import DecayingMean
from router.options.request import PrefillOptions
from router.prompt.task.words import asks, without_options

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
"""Of the n-grams by their bucket, float32 [BUCKETS], and the bias of each sentence's score."""

EXPLICIT = frozenset({"keep_rate", "coverage", "max_keep", "keep_by_role"})
"""Options that say how much is kept. A request that gives one is obeyed. A floor (`min_keep`) lets more be kept."""

AGREES = 0.9
"""An answer agrees if the dense model would have chosen this share of its tokens: a starting value. Bfloat16 alone
changes a few tokens that have a close second."""
LIMIT = 0.8
"""The least share of the answers of a kind that must agree."""
ENOUGH = 8.0
"""Weight of a kind's answers before their share counts: that of the latest ten."""
DECAY = 0.95
"""Weight of an answer after the next one: about the latest twenty count."""
TRIAL = 16
"""Of a kind that runs dense, one prompt in so many is skimmed, so that its share is measured again."""

_SHORT_FORMS = re2.compile(
    r"(?i)\btl;?dr\b"
    r"|(?:^|[.!?\n][ \t]*)(?:summary|abstract|zusammenfassung|résumé|resumen|resumo|riassunto|samenvatting)[\s:]*$"
    r"|(?:摘要|总结|總結|要約|요약)[\s:\x{ff1a}]*$"
)
"""A word in place of a sentence, of which the classifier has too few n-grams."""
_LABEL = re2.compile(r"(?m)(^|[.!?])[ \t]*[\pL\pM]+:[ \t]+")
"""A word before a colon, at the beginning of a sentence."""


def acts(options: PrefillOptions, has_keep_fields: bool) -> bool:
    """Whether the guard may send a request dense: it does not itself say how much is kept. has_keep_fields: a content
    does. `keep_rate: auto` leaves it to Skim."""
    given = options.model_fields_set & (EXPLICIT - {"keep_rate"} if options.keep_rate == AUTO else EXPLICIT)
    return options.enabled == AUTO and not (has_keep_fields or given)


def needs_whole_text(task: str) -> bool:
    """Whether a task needs the whole text. The options of a question of choice do not count.

    The classifier reads it without labels such as `Question:`, and besides the requests before the colon of a line,
    which has the text behind it.
    """
    task = without_options(task).replace("\uff1a", ":")
    clauses = (line.partition(":")[0] for line in task.split("\n"))
    requests = "\n".join(clause for clause in clauses if asks(clause))
    return bool(_SHORT_FORMS.search(task)) or max(map(whole_text_score, (_LABEL.sub(r"\1 ", task), requests))) > 0


class Agreements:
    """What one router has measured."""

    def __init__(self) -> None:
        self._shares: defaultdict[Client, DecayingMean] = defaultdict(partial(DecayingMean, DECAY))
        self._distrusted = Counter[Client]()

    def measured(self, client: Client, *, agrees: bool) -> None:
        """Count an answer to a prompt of this client and shape."""
        self._shares[client].add(agrees)

    def trusts(self, client: Client) -> bool:
        """Whether a prompt of this client and shape may be skimmed."""
        share = self._shares.get(client)
        if share is None or share.weight < ENOUGH or share.value >= LIMIT:
            return True
        self._distrusted[client] += 1
        return self._distrusted[client] % TRIAL == 0


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
