"""What a replica makes at its start stays to its end."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile, and leave what was made out of every later collection.

    Importing vLLM makes about a million objects, and looking through them again and again takes a fifth of the import;
    once it serves, one look through them all would stop a replica for a few tenths of a second.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
