"""Garbage collection while a replica starts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Switch garbage collection off inside the block, and exclude the objects made there from later collections.

    The import of vLLM creates very many objects. Collections during the import take a large part of its time, and a
    full collection while the replica serves would stop it for as long.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
