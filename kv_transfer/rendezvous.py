"""Which of several replicas a key prefers (rendezvous hashing, Thaler and Ravishankar 1998).

It has no state, and a replica that comes or goes moves only its own keys.
"""

from collections.abc import Hashable, Sequence
from hashlib import blake2b
from typing import TypeVar

Replica = TypeVar("Replica", bound=Hashable)


def ranked(key: str, replicas: Sequence[Replica]) -> list[Replica]:
    """The replicas in the order in which they are preferred for `key`. Replicas are told apart by their `str`."""
    return sorted(replicas, key=lambda one: blake2b(f"{key} {one}".encode(), digest_size=8).digest())
