"""A pair without engines, for the measurements: times of its own making, and a selection of every second token."""

import numpy as np

from benchmarks.gpu.pair import Decoded, Timed
from kv_transfer.messages import KeptPrompt


class FakePair:
    stock = False

    def __init__(self):
        self.read_windows = []

    async def dense(self, ids):
        return 1.0 * ids.size

    async def skim(self, ids, options):
        kept = max(1, round(options.keep_rate * ids.size))
        positions = np.arange(kept, dtype=np.int32)
        parts = {"queue": 0.1, "speculate": 0.2 * ids.size, "select": 1.0, "prefill": 1.0 * kept}
        return Timed(1.1 + 0.2 * ids.size + kept, KeptPrompt(ids[:kept], positions, ids.size), parts)

    async def read(self, ids, window=None):
        self.read_windows.append((ids.size, window))
        return 0.2 * ids.size

    async def read_kept(self, kept):
        return 1.0 * kept.token_ids.size

    async def plain(self, kept, tokens, *, stock=False):
        return Decoded(list(range(tokens)), 0.01 * tokens, tokens - 1)

    async def drafted(self, ids, kept, answer, drafts, acceptance, *, instant):
        steps = -(-len(answer) // (1 + round(acceptance * drafts)))
        return Decoded(answer, 0.01 * steps, len(answer) - 1, steps, round(acceptance * drafts) * steps)

    async def draft_ms(self, ids, drafts):
        return 1.0

    def memory(self):
        return {"device_used_bytes": None}
