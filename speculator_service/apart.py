"""Work over a long prompt, beside which the event loop answers other requests and drafting rounds."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

INLINE_TOKENS = 8192
"""The work for a longer prompt is done in a thread: for 131,072 tokens in as many units it takes up to a second. That
for a shorter one takes a few milliseconds with the units of ordinary text."""

Result = TypeVar("Result")


async def apart(tokens: int, work: Callable[..., Result], *arguments: Any) -> Result:
    """What `work` returns, for a prompt of so many tokens."""
    return await asyncio.to_thread(work, *arguments) if tokens > INLINE_TOKENS else work(*arguments)
