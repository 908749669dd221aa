"""Work on a long text runs in a thread, so that the event loop serves others meanwhile."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

Result = TypeVar("Result")

INLINE_CHARS = 16384
"""Work on a text of so many characters takes a few ms. That is less than the way to a thread and back under load."""

_THREADS = ThreadPoolExecutor(2, "long-texts")
"""Such work holds Python's lock most of the time, so more threads would slow the event loop."""


async def apart(chars: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work` returns, which reads a text of so many characters: of a long one, in a thread.

    `work` must change nothing that the event loop uses. No thread can be stopped. So a call that is cancelled ends with
    its thread, and does not begin in one: a client that hangs up and asks again never has two.
    """
    if chars <= INLINE_CHARS:
        return work(*arguments)
    context, is_cancelled = copy_context(), False

    def run() -> Result:
        if is_cancelled:
            raise RuntimeError("nobody waits for this any more")
        return context.run(work, *arguments)

    job = asyncio.get_running_loop().run_in_executor(_THREADS, run)
    try:
        return await asyncio.shield(job)
    except asyncio.CancelledError:
        is_cancelled = True
        with suppress(Exception):
            await job
        raise
