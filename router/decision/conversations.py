"""What one router has seen of later turns: how likely a prompt has one, what it costs, and which conversations live.

The next turn of a prompt begins with more than half of it. Without one for REST_S after its answer, a prompt counts as
the last of its conversation; a next turn that comes after all counts besides.

Each later turn of a prompt that runs speculative reads the new question on both pools and late units on the target, one
of a dense conversation only the new tokens.
"""

from collections.abc import Callable, Mapping, Sequence

from cachetools import LRUCache, TTLCache

from kv_transfer.options import LATE_TOKENS, SHORT_TEXT
from router.decision.choice import SPECULATOR_SHARE
from router.decision.decaying_mean import DecayingMean
from router.decision.ledger import BLOCK_TOKENS
from router.decision.pool_time import PoolTime
from skim_common.models.costs import Read

DECAY = 0.97
"""Weight of a prompt after the next one: about the latest 33 count."""
REST_S = 60.0
IDLE_S = 600.0
"""A conversation lives for so long after its latest turn: in public traces of agents, 4.5 % come after five minutes."""
ASSUMED = 4.0
"""So many prompts of a shape are assumed to have had the share of ASSUMED_SHARES (0 for others), and so many of a
client that of all clients."""
ASSUMED_SHARES: Mapping[str, float] = {"tools": 1.0, "turns": 1.0}
PROMPTS, CLIENTS, CONVERSATIONS = 65536, 4096, 4096
"""So many prompts, pairs of client and shape, and living conversations are remembered."""
MOST_TURNS = 4.0
"""More later turns are not expected: the first token of a prompt is certain."""

Client = tuple[str, str]
"""The name of an API key, empty without keys, and the shape of a prompt (`shape_of`)."""


def shape_of(roles: Sequence[str] | None, *, has_tools: bool) -> str:
    """The shape of a prompt. roles: of a chat's messages; None for a raw prompt."""
    if has_tools:
        return "tools"
    return "text" if roles is None else "turns" if "assistant" in roles else "chat"


def middle(hashes: Sequence[bytes], opening: int) -> int | None:
    """The block in the middle of what stands behind the opening, if there is one: a next turn begins with all up to it.

    hashes: of the prompt's blocks. opening: tokens that all conversations may share, such as a system prompt.
    """
    block = (min(len(hashes), _first(opening)) + len(hashes)) // 2
    return block if block < len(hashes) else None


def goes_on(hashes: Sequence[bytes], opening: int, later: Sequence[bytes]) -> bool:
    """Whether a later prompt is a turn of the same conversation. later: the hashes of its blocks."""
    block = middle(hashes, opening)
    return block is not None and block < len(later) and hashes[block] == later[block]


def _first(opening: int) -> int:
    """The first whole block behind it."""
    return -(-opening // BLOCK_TOKENS)


class Conversations:
    """Which prompts have a next turn, and which conversations live. clock: seconds. hashes, opening: as in `middle`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._resting: TTLCache[bytes, Client] = TTLCache(PROMPTS, REST_S, clock)
        self._ended: LRUCache[bytes, Client] = LRUCache(PROMPTS)
        self._clients: LRUCache[Client, DecayingMean] = LRUCache(CLIENTS)
        self._shapes: dict[str, DecayingMean] = {}
        self._living: TTLCache[bytes, tuple[int, bool]] = TTLCache(CONVERSATIONS, IDLE_S, clock)

    def answered(self, client: Client, hashes: Sequence[bytes], opening: int, tokens: int, *, rests: bool) -> None:
        """A prompt of so many tokens has its answer. rests: it counts in the share of prompts with a next turn."""
        if (first := _first(opening)) < len(hashes):
            self._living[hashes[first]] = tokens, hashes[first] in self._living
        if rests and (block := middle(hashes, opening)) is not None:
            self._end()
            self._resting[hashes[block]] = client

    def arrived(self, hashes: Sequence[bytes]) -> None:
        self._end()
        for block in reversed(hashes):
            if client := self._resting.pop(block, None) or self._ended.pop(block, None):
                self._count(client, 1.0)
                return

    def share(self, client: Client) -> float:
        """The share of prompts of this client and shape that have a next turn."""
        self._end()
        return self._of_client(client).value

    def others(self, hashes: Sequence[bytes], opening: int) -> int:
        """The tokens of all other living conversations that have had more than one turn."""
        first = _first(opening)
        own = hashes[first] if first < len(hashes) else None
        return sum(tokens for key, (tokens, came_back) in self._living.items() if came_back and key != own)

    def _end(self) -> None:
        for block, client in self._resting.expire():
            self._ended[block] = client
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


class LaterTurns:
    """What later turns cost: means over the latest prompts. A prompt is a later turn if at least half is known."""

    def __init__(self) -> None:
        self._later, self._new, self._late = DecayingMean(DECAY), DecayingMean(DECAY), DecayingMean(DECAY)

    def began(self, tokens: int, known: int) -> None:
        """A prompt ran, of which the caches knew `known` tokens in whichever form; both without the opening."""
        is_later = 0 < tokens <= 2 * known
        self._later.add(is_later)
        self._new.add(is_later * (tokens - known), is_later)

    def extended(self, late: float) -> None:
        """The target computed so many tokens of a later turn besides those that are kept of the new ones."""
        self._late.add(late)

    @property
    def expected(self) -> float:
        """The number of later turns that a prompt has on average, at most MOST_TURNS."""
        share = self._later.value
        return min(MOST_TURNS, share / (1 - share)) if share < 1 else MOST_TURNS

    @property
    def late(self) -> float:
        """The tokens that the target reads of a later turn besides those that are kept of the new ones."""
        return max(0.0, self._late.value) if self._late.weight else LATE_TOKENS

    def kept(self, new: int, share: float) -> float:
        """The tokens that the target reads of a later turn with `new` new tokens, of which `share` are kept."""
        return (new if new <= SHORT_TEXT else share * new) + self.late

    @property
    def _new_tokens(self) -> int:
        """Of an average later turn."""
        return max(1, round(self._new.value)) if self._new.weight else SHORT_TEXT

    def extra_tokens(self, share: float, turns: int) -> float:
        """How many more tokens `turns` later turns of a prompt read if it runs speculative, in tokens of the target."""
        new = self._new_tokens
        return turns * max(0.0, SPECULATOR_SHARE * new + self.kept(new, share) - new)

    def extra_ms(
        self,
        speculator: Callable[[int], float | None],
        target: PoolTime,
        size: int,
        kept: int,
        share: float,
        turns: int | None = None,
    ) -> float:
        """How much longer all later turns of a prompt are expected to take if it runs speculative, at least 0.

        speculator: the milliseconds of its read of so many new tokens; None if it is not known. size: tokens of the
        prompt, of which a selection keeps `kept`. share: of new tokens that are kept. turns: None: as expected.
        """
        new = self._new_tokens
        read = speculator(new)
        extended = target.estimate(Read(max(1, round(self.kept(new, share))), kept))
        dense = target.estimate(Read(new, size))
        if read is None or extended is None or dense is None:
            return 0.0
        return (self.expected if turns is None else turns) * max(0.0, read + extended - dense)
