"""What the first token of a pair costs, as a share of what it costs the target alone. Pure.

Costs are operations (`skim_common.models.costs`), so both pools are taken to compute as fast for their size. Prefill is
bound by computing. Only active experts count, windows bound attention, and layers with linear attention have none.
`skim plan size` gives times on GPUs.
"""

from typing import NamedTuple

from kv_transfer.options import SelectionOptions
from skim_common.models.costs import Read, ReadCost

LENGTHS = (8192, 32768, 131072)
"""Prompt lengths in tokens."""
QUESTION = 64
"""Tokens of a question and of the chat template around a window."""


class FirstToken(NamedTuple):
    """The cost of the first token, where dense is 1: the speculator's read, and the target's read of what is kept.

    whole: the speculator reads the prompt as a whole. windows: it reads windows (`read: windows`).
    """

    whole: float
    windows: float


def first_token(speculator: ReadCost, target: ReadCost, tokens: int, keep_rate: float) -> FirstToken:
    """For a prompt of `tokens` tokens without cached ones. Not counted: scoring, and the decoding of the look-ahead."""
    dense = _operations(target, Read(tokens))
    kept = _operations(target, Read.of(keep_rate * tokens))
    whole = _operations(speculator, Read(tokens))
    return FirstToken((whole + kept) / dense, (_in_windows(speculator, tokens) + kept) / dense)


def _in_windows(speculator: ReadCost, tokens: int) -> float:
    size = SelectionOptions().window_tokens
    windows = [size] * (tokens // size) + [tokens % size] * bool(tokens % size)
    return sum(_operations(speculator, Read(window + QUESTION)) for window in windows)


def _operations(cost: ReadCost, read: Read) -> float:
    return cost.linear_flops(read) + cost.attention_flops(read)
