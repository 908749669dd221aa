"""Ends drafting sessions that no target will end, in the background, so that no client waits."""

import asyncio
from contextvars import Context

from kv_transfer.messages import SessionHandle
from router.pools.interface import Pools


class SessionEnds:
    """The ends that are under way."""

    def __init__(self) -> None:
        self._ending: set[asyncio.Task[None]] = set()

    def end(self, pools: Pools, session: SessionHandle) -> None:
        """Ask the speculator to free the session.

        The task has its own context: Serve cancels calls that belong to a cancelled request, and finds them by context.
        """
        task = asyncio.create_task(pools.end_session(session), context=Context())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
