"""The other replicas of the pool, which read windows for this one; it reads itself what they do not."""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Protocol

from kv_transfer.windows import WindowScores, WindowsRequest
from skim_common.errors import SkimError
from speculator_service.engine import SpeculatorEngine
from speculator_service.reading.windows import read_windows

logger = logging.getLogger(__name__)

PATIENCE_S = 0.1
"""A replica with room begins a read sooner than this."""


class Peers(Protocol):
    """own: the name of this replica."""

    own: str

    def replicas(self) -> Sequence[str]:
        """The names of all replicas that serve, as far as they are known."""
        ...

    async def read(self, replica: str, request: WindowsRequest, begun: Callable[[], None]) -> WindowScores:
        """Let a replica read. begun: is called when it has the request. Cancelling ends the read there.

        Raises SkimError.
        """
        ...


async def read_by_peer(
    engine: SpeculatorEngine, peers: Peers, replica: str, request: WindowsRequest, own: asyncio.Future[WindowScores]
) -> WindowScores:
    """The scores of windows that `replica` is to read. If it fails, or has not begun when this replica has done its own
    part, this one reads them. own: this replica's part."""
    begun = asyncio.Event()
    call = asyncio.create_task(peers.read(replica, request, begun.set))
    patience = asyncio.create_task(_spent(own))
    try:
        await asyncio.wait([call, patience], return_when=asyncio.FIRST_COMPLETED)
        if call.done() or begun.is_set():
            return await call
        problem = "it has not begun"
    except SkimError as error:
        problem = str(error)
    finally:
        call.cancel()
        patience.cancel()
    logger.warning("request %s: another replica does not read its windows: %s", request.request_id, problem)
    return await read_windows(engine, request)


async def _spent(own: asyncio.Future[WindowScores]) -> None:
    """Return when `own` has ended and PATIENCE_S is over."""
    await asyncio.gather(asyncio.wait([own]), asyncio.sleep(PATIENCE_S))
