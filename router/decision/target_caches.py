"""What the target pool has cached of this router's prompts, as they are and as they were kept."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import KeptPrompt
from router.decision.cache_ledger import BLOCK_TOKENS, CacheLedger, ends_of


class TargetCaches:
    """dense, kept: the prefixes in both forms."""

    def __init__(self) -> None:
        self.dense, self.kept = CacheLedger(), CacheLedger()
        self._sent = Counter[bytes]()

    def hold(self, tokens: float) -> None:
        """The caches have room for so many tokens."""
        self.dense.capacity = self.kept.capacity = tokens

    def wrote(self, tokens: int) -> None:
        """The target has written so many tokens, in whichever form."""
        for ledger in (self.dense, self.kept):
            ledger.wrote(tokens)

    def coming(self, hashes: Sequence[bytes]) -> int:
        """The tokens at the beginning of a prompt that the target reads now for others. hashes: of its blocks."""
        return next((i for i, block in enumerate(hashes) if block not in self._sent), len(hashes)) * BLOCK_TOKENS

    @contextmanager
    def sent(self, hashes: Sequence[bytes]) -> Iterator[None]:
        """While a dense prompt is with the target: those that come behind it find in the cache what it reads."""
        self._sent.update(hashes)
        try:
            yield
        finally:
            self._sent.subtract(hashes)
            for block in hashes:
                if not self._sent[block]:
                    del self._sent[block]

    def add(self, ids: Int32Array, hashes: Sequence[bytes], prompt: KeptPrompt, *, whole: bool) -> None:
        """The target has a prompt, or its answer too: ids [N]. hashes: of its blocks. prompt: as it was read. whole: as
        it is."""
        if whole:
            self.dense.add(ids, hashes, ends_of(hashes))
            return
        ends = np.array(ends_of(hashes), np.int64)
        in_prompt = np.searchsorted(np.sort(prompt.positions), np.minimum(ends, prompt.context_length))
        self.kept.add(ids, hashes, (in_prompt + np.maximum(0, ends - prompt.context_length)).tolist())
        # As far as nothing is dropped, it is the beginning of a dense prompt too.
        dropped = np.flatnonzero(prompt.positions != np.arange(prompt.positions.size))
        begin = int(dropped[0]) if dropped.size else int(prompt.positions.size)
        alike = hashes[: begin // BLOCK_TOKENS]
        self.dense.add(ids[:begin], alike, ends_of(alike))
