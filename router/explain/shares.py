"""What is held for later questions about requests: bounded in bytes, with a share for each API key."""

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

Value = TypeVar("Value")


class KeyShares(Generic[Value]):
    """The latest values by the name of the API key (empty without keys) and a name that a client may choose.

    Beyond `max_bytes`, or `max_values` of the least size, the oldest value of the key that holds most is removed. So no
    key removes the values of one that holds less. The names count.
    """

    def __init__(self, max_bytes: int, max_values: int) -> None:
        self._max_bytes, self._least = max_bytes, max_bytes // max_values
        self._values: dict[str, OrderedDict[str, tuple[Value, int]]] = {}
        self._bytes: dict[str, int] = {}

    def put(self, key: str, name: str, value: Value, size: int) -> None:
        """Hold a value of so many bytes, in place of an earlier one of this name."""
        self.remove(key, name)
        size = max(size + len(name), self._least)
        self._values.setdefault(key, OrderedDict())[name] = value, size
        self._bytes[key] = self._bytes.get(key, 0) + size
        while sum(self._bytes.values()) > self._max_bytes:
            largest = max(self._bytes, key=self._bytes.__getitem__)
            self.remove(largest, next(iter(self._values[largest])))

    def remove(self, key: str, name: str) -> None:
        """Forget the value, if it is held."""
        values = self._held(key)
        if name in values:
            self._bytes[key] -= values.pop(name)[1]
        if key in self._values and not values:
            del self._values[key], self._bytes[key]

    def get(self, key: str, name: str) -> Value | None:
        held = self._held(key).get(name)
        return None if held is None else held[0]

    def latest(self, key: str) -> Iterator[Value]:
        """All values of a key, the latest first."""
        return (value for value, _ in reversed(self._held(key).values()))

    def _held(self, key: str) -> OrderedDict[str, tuple[Value, int]]:
        return self._values.get(key) or OrderedDict()
