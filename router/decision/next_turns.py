"""How likely a prompt has a next turn, by client and shape of the prompt: as this router has seen it. Pure.

The prompt of a complete answer rests. Its next turn is a prompt that begins with more than half of it. Without one for
REST_S, it counts as the last turn of its conversation; a next turn that comes after all counts besides.
"""

from collections.abc import Callable, Mapping, Sequence

from cachetools import LRUCache, TTLCache

from skim_common.decaying_mean import DecayingMean

REST_S = 60.0
DECAY = 0.97
"""Weight of a prompt after the next one: about the latest 33 count."""
ASSUMED = 4.0
"""So many prompts are assumed before the first one: of a shape with the share of ASSUMED_SHARES, and of a client with
that of all clients."""
ASSUMED_SHARES: Mapping[str, float] = {"tools": 1.0, "turns": 1.0}
"""A prompt of another shape is assumed to be the last one."""
PROMPTS = 65536
"""So many prompts are remembered."""
CLIENTS = 4096
"""So many pairs of client and shape are remembered. The least recently used one is forgotten first."""

Client = tuple[str, str]
"""The name of an API key, and the shape of a prompt, by `agreements.shape_of`."""


class NextTurns:
    """What one router has seen. clock: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._resting: TTLCache[bytes, Client] = TTLCache(PROMPTS, REST_S, clock)
        self._ended: LRUCache[bytes, Client] = LRUCache(PROMPTS)
        self._clients: LRUCache[Client, DecayingMean] = LRUCache(CLIENTS)
        self._shapes: dict[str, DecayingMean] = {}

    def answered(self, client: Client, mark: bytes) -> None:
        """A prompt has its answer. mark: the hash of its block `catch_up.middle`."""
        self._end()
        self._resting[mark] = client

    def arrived(self, hashes: Sequence[bytes]) -> None:
        """A prompt came. hashes: of its blocks."""
        self._end()
        for mark in reversed(hashes):
            if client := self._resting.pop(mark, None) or self._ended.pop(mark, None):
                self._count(client, 1.0)
                return

    def share(self, client: Client) -> float:
        """The share of such prompts of this client that have a next turn."""
        self._end()
        return self._of_client(client).value

    def _end(self) -> None:
        for mark, client in self._resting.expire():
            self._ended[mark] = client
            self._count(client, 0.0)

    def _count(self, client: Client, followed: float) -> None:
        for mean in (self._of_client(client), self._of_shape(client[1])):
            mean.add(followed)

    def _of_client(self, client: Client) -> DecayingMean:
        assumed = ASSUMED * self._of_shape(client[1]).value
        return self._clients.setdefault(client, DecayingMean(DECAY, assumed, ASSUMED))

    def _of_shape(self, shape: str) -> DecayingMean:
        assumed = ASSUMED * ASSUMED_SHARES.get(shape, 0.0)
        return self._shapes.setdefault(shape, DecayingMean(DECAY, assumed, ASSUMED))
