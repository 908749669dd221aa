"""A pool of replicas with mock engines, which read windows for each other, and requests for it."""

import asyncio

import numpy as np

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.layout import Frame
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from kv_transfer.windows import WindowScores, WindowsRequest
from kv_transfer.wire.codec import decode, encode
from skim_common.errors import EngineUnavailableError
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import layout_of

OPTIONS = SelectionOptions(
    scoring="heads", read="windows", read_again="off", window_tokens=512, protect_last=4, lexical_weight=0
)
FRAME = Frame(np.array([1, 2], np.int32), np.array([3], np.int32), np.array([4, 5], np.int32))
QUESTION = 20


def asking(tokens=16384, seed=0) -> SelectRequest:
    """A text of lines of ten tokens, and a question at its end."""
    ids = np.random.default_rng(seed).integers(10, 900, tokens).astype(np.int32)
    end = tokens - OPTIONS.protect_last
    asked = (end - QUESTION, end)
    units = np.arange(0, end - QUESTION, 10, dtype=np.int32)
    return SelectRequest("r", ids, OPTIONS, layout_of([asked], question=asked, units=units, frame=FRAME))


class Pool:
    """Replicas with mock engines. Each is among the peers of all others; what they exchange is encoded.

    broken: replicas that fail. full: those that never begin. slow: those that begin and do not end.
    """

    def __init__(self, model, count, *, broken=(), full=(), slow=(), **engine):
        self.engines = {
            f"replica {i}": MockSpeculator(model, one_at_a_time=True, head_profile=True, **engine) for i in range(count)
        }
        self._broken, self._full, self._slow = broken, full, slow
        self.ended: list[str] = []

    def peers(self, own):
        return _Peers(self, own)

    async def read(self, replica, request, begun):
        try:
            if replica in self._full:
                await asyncio.Event().wait()
            begun()
            if replica in self._broken:
                raise EngineUnavailableError("gone")
            if replica in self._slow:
                await asyncio.sleep(100)
            service = SpeculatorService(self.engines[replica])
            reply = await service.read_windows(decode(encode(request), WindowsRequest))
            return decode(encode(reply), WindowScores)
        except asyncio.CancelledError:
            self.ended.append(replica)
            raise


class _Peers:
    def __init__(self, pool, own):
        self._pool, self.own = pool, own

    def replicas(self):
        return list(self._pool.engines)

    async def read(self, replica, request, begun):
        return await self._pool.read(replica, request, begun)
