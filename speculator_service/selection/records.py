"""What was kept for earlier prompts, found by the tokens that a new prompt begins with."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kv_transfer.arrays import Int32Array, common_prefix
from kv_transfer.options import SelectionOptions
from kv_transfer.prefix_hash import block_hashes

BLOCK_SIZE = 32
"""Tokens per hashed block: prompts that share less than one block have no record in common."""

MAX_TOKENS = 2**22
"""Tokens of all records if the capacity of the engine's KV cache is unknown."""


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What was kept for one prompt. token_ids: int32 [M]. positions: int32 [K], the kept ones in cache order. options,
    regions: of the request, and what of its layout decides what is kept, as bytes. blocks: the prompt's block hashes.
    """

    token_ids: Int32Array
    positions: Int32Array
    options: SelectionOptions
    regions: tuple[bytes, ...]
    blocks: Sequence[bytes] = field(repr=False)


class Records:
    """The most recently used records. They are never changed, so concurrent requests may extend the same one."""

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        """max_tokens: of all prompts together; a record of a longer prompt is not kept."""
        self._max_tokens = max_tokens
        self._records: OrderedDict[Record, None] = OrderedDict()
        self._by_block: dict[bytes, dict[Record, None]] = {}
        self.tokens = 0

    def find(self, token_ids: Int32Array, salt: str | None = None) -> tuple[Record, int] | None:
        """The record that shares the longest beginning with `token_ids` [M], and the number of tokens that it shares;
        of several, the newest."""
        for block in reversed(block_hashes(token_ids, BLOCK_SIZE, salt)):
            if block in self._by_block:
                record = next(reversed(self._by_block[block]))
                self._records.move_to_end(record)
                return record, common_prefix(record.token_ids, token_ids)
        return None

    def add(
        self,
        token_ids: Int32Array,
        positions: Int32Array,
        options: SelectionOptions,
        salt: str | None = None,
        *,
        regions: tuple[bytes, ...] = (),
        replaces: Record | None = None,
    ) -> None:
        """Keep what was kept for a prompt. replaces: a record that it continues as a whole."""
        if replaces is not None:
            self.drop(replaces)
        blocks = block_hashes(token_ids, BLOCK_SIZE, salt)
        if not blocks or token_ids.size > self._max_tokens:
            return
        record = Record(token_ids.astype(np.int32), positions.astype(np.int32), options, regions, blocks)
        self._records[record] = None
        self.tokens += record.token_ids.size
        for block in blocks:
            self._by_block.setdefault(block, {})[record] = None
        while self.tokens > self._max_tokens:
            self.drop(next(iter(self._records)))

    def drop(self, record: Record) -> None:
        """Forget a record; does nothing if it is forgotten already."""
        if record not in self._records:
            return
        del self._records[record]
        self.tokens -= record.token_ids.size
        for block in record.blocks:
            holders = self._by_block[block]
            del holders[record]
            if not holders:
                del self._by_block[block]

    def __len__(self) -> int:
        return len(self._records)
