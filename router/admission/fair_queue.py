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
class Turn(Generic[Item]):
    """An item's place in the order. start: its start tag. number: of arrival."""

    priority: int
    start: float
    number: int
    item: Item

    @property
    def order(self) -> Order:
        return self.priority, self.start, self.number


class FairQueue(Generic[Item]):
    """cost: in any unit, > 0; of all items the same one."""

    def __init__(self) -> None:
        self._turns: list[Turn[Item]] = []
        self._ends: dict[str, float] = {}
        self._now = 0.0
        self._numbers = 0

    def __len__(self) -> int:
        return len(self._turns)

    def __iter__(self) -> Iterator[Turn[Item]]:
        """In the order of service."""
        return iter(self._turns)

    def next_order(self, key: str, priority: int) -> Order:
        """The order that the key's next request would have."""
        return priority, max(self._now, self._ends.get(key, 0.0)), math.inf

    def push(self, key: str, priority: int, cost: float, item: Item) -> Turn[Item]:
        _, start, _ = self.next_order(key, priority)
        self._ends[key] = start + cost
        turn = Turn(priority, start, self._numbers, item)
        self._numbers += 1
        place = next((i for i, other in enumerate(self._turns) if other.order > turn.order), len(self._turns))
        self._turns.insert(place, turn)
        return turn

    def serve(self, turn: Turn[Item]) -> None:
        """Take an item out because it is served: virtual time goes on to its start."""
        self._turns.remove(turn)
        self._now = max(self._now, turn.start)
        if not self._turns:
            # Nobody waits: a key's past does not count against it.
            self._ends = {key: end for key, end in self._ends.items() if end > self._now}

    def drop(self, turn: Turn[Item], key: str, cost: float) -> None:
        """Take an item out that is not served. It no longer counts for its key."""
        self._turns.remove(turn)
        self._ends[key] -= cost

    def first(self, fits: Callable[[Item], bool]) -> Turn[Item] | None:
        """The first item in the order that `fits`."""
        return next((turn for turn in self._turns if fits(turn.item)), None)
