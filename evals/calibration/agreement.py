"""How much two answers have in common."""

from collections import Counter

from kv_transfer.arrays import Int32Array


def agreement(answer: Int32Array, other: Int32Array) -> float:
    """The normalised token overlap of two answers (token ids, int32 [A] and [B]), 0 to 1; 1 for equal answers.

    It is SQuAD's F1 (arXiv 1606.05250, section 6.1) over token ids: twice the number of shared tokens, with their
    multiplicity, divided by the number of tokens of both. Two empty answers agree.
    """
    if not answer.size and not other.size:
        return 1.0
    shared = (Counter(answer.tolist()) & Counter(other.tolist())).total()
    return 2 * shared / (answer.size + other.size)
