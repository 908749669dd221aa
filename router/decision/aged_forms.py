"""What is left of the old results of tools in a conversation's prompt, once the target has read it so. Pure.

A result is aged once: what an aged form drops stays dropped, so that the kept tokens of later turns begin alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
from cachetools import LRUCache

from kv_transfer.arrays import Int32Array, no_pairs
from kv_transfer.spans import mask_of
from router.decision.cache_ledger import BLOCK_TOKENS
from router.options.policies import Age

MOST_FORMS = 4096
"""Aged forms that are remembered; the least recently used one is forgotten first."""
MOST_READ = 2.0
"""Results age once the target would read at most so many tokens for each that is dropped: it reads all that follows,
unless it shrinks the prompt in place."""


class Result(Protocol):
    """A tool's result, as `router.prompt.tool_results.ToolResult`."""

    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def turns(self) -> int: ...


@dataclass(frozen=True, slots=True, eq=False)
class AgedForm:
    """What is dropped of a prompt's beginning. All that follows is kept.

    age: by which it was made. dropped: int32 [D, 2], token spans, sorted and apart. end: of the last aged result.
    coverage: the kept share of the prompt's importance, when it was aged. kv_tag: of what is left, if the target has
    shrunk the prompt in place.
    """

    age: Age
    dropped: Int32Array
    end: int
    coverage: float
    kv_tag: bytes = b""

    def kept(self, size: int) -> Int32Array:
        """The kept positions of a prompt of `size` tokens that begins so, int32 [K]."""
        return np.flatnonzero(~mask_of(self.dropped, size)).astype(np.int32)


def old_results(results: Sequence[Result], age: Age, *, since: int = 0, later: int = 0) -> Int32Array:
    """The spans of the results that are old, int32 [R, 2]. since: of those from this token on. later: turns that come
    after the prompt."""
    found = [(one.start, one.end) for one in results if one.turns + later >= age.turns and one.start >= since]
    return np.array(found, np.int32) if found else no_pairs()


def block_in_place(shrinks_by: int, before: AgedForm | None) -> int:
    """The tokens of a block, if a target can shrink a prompt of the form `before` in place; 0: it reads again.

    shrinks_by: as in ModelInfo.
    """
    whole = before is None or not shrinks_by or not (before.dropped % shrinks_by).any()
    return shrinks_by if whole else 0


def in_whole_blocks(
    dropped: npt.NDArray[np.bool_],
    may_drop: npt.NDArray[np.bool_],
    importance: npt.NDArray[np.float64],
    spans: Int32Array,
    block: int,
) -> npt.NDArray[np.bool_]:
    """Whole blocks of `block` tokens in place of the tokens that a selection drops, bool [M]: of each of the spans,
    int32 [R, 2], at most as many tokens. The blocks whose kept tokens have the least importance go.

    dropped, may_drop: bool [M]. importance: float64 [M].
    """
    count, found = dropped.size // block, np.zeros(dropped.size, bool)
    blocks = found[: count * block].reshape(count, block)
    whole = np.logical_and.reduce(may_drop[: blocks.size].reshape(blocks.shape), axis=1)
    worth = np.where(dropped, 0.0, importance)[: blocks.size].reshape(blocks.shape).sum(1)
    for start, end in spans.tolist():
        places = np.arange(-(-start // block), end // block)
        places = places[whole[places]]
        blocks[places[np.argsort(worth[places], kind="stable")][: int(dropped[start:end].sum()) // block]] = True
    return found


def is_worth_it(old: Int32Array, age: Age, size: int, block: int = 0) -> bool:
    """Whether old results, int32 [R, 2], of a prompt of `size` tokens age now, or else later with others. Nothing is
    dropped yet behind the beginning of the first. block: as `block_in_place` says."""
    if not old.size or block:
        return bool(old.size)
    dropped = (1 - age.keep) * float(np.diff(old).sum())
    return size - int(old[0, 0]) - dropped <= MOST_READ * dropped


class AgedForms:
    """The aged forms of one router, by the hash of the last whole block of what they cover."""

    def __init__(self) -> None:
        self._forms: LRUCache[bytes, tuple[AgedForm, Int32Array]] = LRUCache(MOST_FORMS)

    def remember(self, form: AgedForm, ids: Int32Array, hashes: Sequence[bytes]) -> None:
        """ids, hashes: of the prompt, as in `CacheLedger`. The form ends behind its first block."""
        whole = form.end // BLOCK_TOKENS
        self._forms[hashes[whole - 1]] = form, ids[whole * BLOCK_TOKENS : form.end].copy()

    def find(
        self, ids: Int32Array, hashes: Sequence[bytes], age: Age, droppable: npt.NDArray[np.bool_]
    ) -> AgedForm | None:
        """The longest form of a prompt. ids, hashes: as in `remember`. droppable: bool [M], what it allows to be
        dropped."""
        for whole in range(len(hashes), 0, -1):
            if (found := self._forms.get(hashes[whole - 1])) is None:
                continue
            form, rest = found
            begins_so = np.array_equal(ids[whole * BLOCK_TOKENS : form.end], rest)
            if begins_so and form.age == age and not (mask_of(form.dropped, ids.size) & ~droppable).any():
                return form
        return None
