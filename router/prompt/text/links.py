"""Links between the units of a text: two units share an identifier, such as an id or the name of a function.

A question may name only one of two lines that the answer needs: the customer, whose id the line of the order has. If
the question itself has an identifier, the answer is most likely where it stands; many tokenizers cut it into digits and
syllables that stand everywhere. An identifier is a word of at least MIN_CHARACTERS characters with a digit, an
underscore, or a capital after its first character. One that stands in more than MOST_UNITS units links nothing: it is a
date, a type or a level of a log.
"""

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Int32Array, no_pairs
from router.prompt.text.codes import Codes
from router.prompt.text.words import hashes

MIN_CHARACTERS = 4
MOST_UNITS = 3


def links_of(
    codes: Codes,
    begins: npt.NDArray[np.int64],
    units: npt.NDArray[np.int64],
    droppable: npt.NDArray[np.bool_],
    questions: Int32Array | None = None,
) -> Int32Array:
    """The pairs of units that share an identifier, int32 [L, 2], each pair once, the earlier unit first. A unit that
    shares one with a question is paired with itself.

    begins: the first character of each token [M], ascending. units: the first token of each unit [U]. droppable: bool
    [M]; a unit without a droppable token is left out. questions: int32 [Q, 2], half-open token
    ranges, not droppable.
    """
    starts, words = _identifiers(codes)
    unit = np.searchsorted(begins[units], starts, "right") - 1
    dropped = np.logical_or.reduceat(droppable, units)[unit.clip(min=0)] & (unit >= 0)
    held = np.unique(np.stack([words[dropped], unit[dropped].astype(np.uint64)], 1), axis=0)
    known, first, count = np.unique(held[:, 0], return_index=True, return_counts=True)
    spans = np.searchsorted(starts, np.append(begins, codes.size)[no_pairs() if questions is None else questions])
    asked = [words[first:end] for first, end in spans.tolist()]
    is_asked, pairs = np.isin(known, np.concatenate([words[:0], *asked])), []
    for size in range(1, MOST_UNITS + 1):
        of_size = count == size
        group = held[first[of_size][:, None] + np.arange(size), 1]
        pairs += [group[:, [one, other]] for one in range(size) for other in range(one + 1, size)]
        pairs.append(group[is_asked[of_size]].reshape(-1, 1)[:, [0, 0]])
    return np.unique(np.concatenate(pairs), axis=0).astype(np.int32)


def _identifiers(codes: Codes) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """Where each identifier begins [I], ascending, and a hash of its characters [I]."""
    digit = (codes >= ord("0")) & (codes <= ord("9"))
    capital = (codes >= ord("A")) & (codes <= ord("Z"))
    small = (codes >= ord("a")) & (codes <= ord("z"))
    inside = digit | capital | small | (codes == ord("_"))
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    starts, ends = edges[::2], edges[1::2]
    marked = np.r_[0, np.cumsum(inside & ~small)]  # digits, underscores and capitals
    chosen = (ends - starts >= MIN_CHARACTERS) & (marked[ends] - marked[starts] > capital[starts])
    return starts[chosen], hashes(codes, starts[chosen], (ends - starts)[chosen])
