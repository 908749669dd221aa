"""The router's queue: by priority, then in fair shares of work for each API key.

Within a priority, start-time fair queueing (Goyal, Vin and Cheng, 1996): a request's start tag is the virtual time of
its arrival, or the end of its key's work before it if that is later, and the lowest tag is served first. So a key that
sends much waits for itself, and a key that sends little finds a short queue whatever the others send. A key with weight
w gets w times the work of a key with weight 1 while both wait: its work costs 1/w.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

Item = TypeVar("Item")


Order = tuple[int, float, float]
"""Priority, start tag and number: the lowest is served first."""


@dataclass(frozen=True, slots=True, eq=False)
class QueueEntry(Generic[Item]):
    """An item's place in the order. start: its start tag. number: of arrival. key, cost: as it was pushed."""

    priority: int
    start: float
    number: int
    key: str
    cost: float
    item: Item

    @property
    def order(self) -> Order:
        return self.priority, self.start, self.number


class FairQueue(Generic[Item]):
    """cost: in any unit, > 0; of all items the same one."""

    def __init__(self) -> None:
        self._entries: list[QueueEntry[Item]] = []
        self._ends: dict[str, float] = {}
        self._now = 0.0
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[QueueEntry[Item]]:
        """In the order of service."""
        return iter(self._entries)

    def next_order(self, key: str, priority: int) -> Order:
        """The order that the key's next request would have."""
        return priority, max(self._now, self._ends.get(key, 0.0)), math.inf

    def push(self, key: str, priority: int, cost: float, item: Item) -> QueueEntry[Item]:
        _, start, _ = self.next_order(key, priority)
        self._ends[key] = start + cost
        entry = QueueEntry(priority, start, self._numbers, key, cost, item)
        self._numbers += 1
        place = next((i for i, other in enumerate(self._entries) if other.order > entry.order), len(self._entries))
        self._entries.insert(place, entry)
        return entry

    def serve(self, entry: QueueEntry[Item]) -> None:
        """Take an item out because it is served: virtual time goes on to its start."""
        self._entries.remove(entry)
        self._now = max(self._now, entry.start)
        if not self._entries:
            # Nobody waits: a key's past does not count against it.
            self._ends = {key: end for key, end in self._ends.items() if end > self._now}

    def drop(self, entry: QueueEntry[Item]) -> None:
        """Take an item out, if it was not served. It no longer counts for its key."""
        if entry in self._entries:
            self._entries.remove(entry)
            self._ends[entry.key] -= entry.cost

    def first(self, fits: Callable[[Item], bool]) -> QueueEntry[Item] | None:
        """The first item in the order that `fits`."""
        return next((entry for entry in self._entries if fits(entry.item)), None)
