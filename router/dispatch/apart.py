"""Work over a client's text, beside which the event loop goes on."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

INLINE_CHARS = 16384
"""The work for a longer text is done in a thread: the units of 131,072 tokens take .2 s. That for a shorter one takes
less than the way to a thread and back under load."""

Result = TypeVar("Result")


async def apart(chars: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work` returns, for a text of so many characters."""
    return await asyncio.to_thread(work, *arguments) if chars > INLINE_CHARS else work(*arguments)
