"""What a replica makes at its start stays to its end."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Collect no garbage meanwhile, and leave what was made out of every later collection.

    Importing vLLM makes very many objects: looking through them again and again is a good part of the import, and once
    it serves, a look through them all would stop a replica for as long.
    """
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()
