"""Rankings of a prompt's chunks that need no speculator: the baselines of the evals.

Each gives one preference per chunk, float64 [chunks]; the higher ones are kept first.
"""

import logging
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.selection.evidence import evidence_spans
from evals.tasks.registry import Sample
from router.prompt.protected_spans import char_ranges
from router.prompt.rendered import RenderedPrompt
from skim_common.errors import SkimError

Preference = npt.NDArray[np.float64]


def random_chunks(sample: Sample, prompt: RenderedPrompt, size: int) -> Preference:
    """Random preferences, which follow from the sample's seed."""
    return np.random.default_rng(zlib.crc32(sample.seed.encode())).random(_count(prompt, size))


def last_window(_sample: Sample, prompt: RenderedPrompt, size: int) -> Preference:
    """The later, the higher."""
    return np.arange(_count(prompt, size), dtype=np.float64)


def first_and_last(_sample: Sample, prompt: RenderedPrompt, size: int) -> Preference:
    """The farther from the middle, the higher."""
    place = np.arange(_count(prompt, size), dtype=np.float64)
    return np.abs(place - (place.size - 1) / 2)


def bm25(sample: Sample, prompt: RenderedPrompt, size: int) -> Preference:
    """BM25 of each chunk for the words of the question (Robertson, TREC-3; the library bm25s), without stop words."""
    try:
        import bm25s
    except ImportError:
        raise SkimError("the selectors bm25 and oracle need bm25s: pip install '.[bench]'") from None
    logging.getLogger("bm25s").setLevel(logging.WARNING)  # it logs every index on the level DEBUG
    chunks = bm25s.tokenize(chunk_texts(prompt, size), stopwords="en", return_ids=False, show_progress=False)
    [question] = bm25s.tokenize([sample.quiz.question], stopwords="en", return_ids=False, show_progress=False)
    index = bm25s.BM25()
    index.index(chunks, show_progress=False)
    return np.asarray(index.get_scores(question), np.float64)


def embedding(sample: Sample, prompt: RenderedPrompt, size: int) -> Preference:
    """Cosine of each chunk's embedding and the question's (WordLlama: the mean of 256-dimensional token embeddings)."""
    texts = [sample.quiz.question, *chunk_texts(prompt, size)]
    vectors = np.asarray(_embedding_model().embed(texts, norm=True), np.float64)
    return vectors[1:] @ vectors[0]


def oracle(sample: Sample, prompt: RenderedPrompt, size: int) -> Preference:
    """The chunks that touch the evidence, then the others by BM25: what a perfect ranking of chunks would keep."""
    lexical = bm25(sample, prompt, size)
    touched = np.zeros(lexical.size, bool)
    for start, end in evidence_spans(prompt, sample.quiz):
        touched[start // size : (end - 1) // size + 1] = True
    return lexical + touched * (1 + lexical.max())


def chunk_texts(prompt: RenderedPrompt, size: int) -> list[str]:
    """The text of each chunk of `size` tokens."""
    assert prompt.text is not None
    assert prompt.offsets is not None
    offsets = char_ranges(prompt.offsets)
    ranges = (offsets[start : start + size] for start in range(0, prompt.size, size))
    return [prompt.text[int(part[:, 0].min()) : int(part[:, 1].max())] for part in ranges]


def _count(prompt: RenderedPrompt, size: int) -> int:
    return -(-prompt.size // size)


@cache
def _embedding_model() -> Any:
    try:
        import wordllama
    except ImportError:
        raise SkimError("the selector embedding needs wordllama: pip install '.[bench]'") from None
    # The package holds weights and tokenizer, but looks for the tokenizer in its cache folder only.
    folder = Path(wordllama.__file__).parent
    return wordllama.WordLlama.load(cache_dir=folder, disable_download=True)
