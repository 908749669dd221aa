"""What the measurements ask of a pair of models, whichever engine runs them."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from kv_transfer.messages import Int32Array, KeptPrompt, SelectionOptions


@dataclass
class Timed:
    """One run. ms: from the request to the first token. parts: milliseconds by name. kept: what the target read."""

    ms: float
    kept: KeptPrompt
    parts: dict[str, float] = field(default_factory=dict)


@dataclass
class Decoded:
    """One answer. seconds: from its first token to its last; tokens: those after the first.

    verifications: target forwards with drafts, accepted: drafts that held. ids: the whole answer.
    """

    ids: list[int]
    seconds: float
    tokens: int
    verifications: int = 0
    accepted: int = 0


class Pair(Protocol):
    """A target and a speculator on one device. Every call reads its prompt anew: nothing comes from a prefix cache."""

    engine: str
    stock: bool
    """Whether `plain` can also decode on a target engine that was started without drafting."""

    async def dense(self, ids: Int32Array) -> float:
        """Milliseconds to the first token when the target reads all of `ids`."""
        ...

    async def skim(self, ids: Int32Array, options: SelectionOptions) -> Timed:
        """Select with the speculator, then the target's first token from what was kept."""
        ...

    async def read(self, ids: Int32Array) -> float:
        """Milliseconds of the speculator's forward over `ids` alone."""
        ...

    async def read_kept(self, kept: KeptPrompt) -> float:
        """Milliseconds to the target's first token from a kept prompt."""
        ...

    async def plain(self, kept: KeptPrompt, tokens: int, *, stock: bool = False) -> Decoded:
        """Decode greedily without drafts."""
        ...

    async def drafted(
        self, ids: Int32Array, kept: KeptPrompt, answer: list[int], drafts: int, acceptance: float, *, instant: bool
    ) -> Decoded:
        """Decode with `drafts` drafts a step, each of which holds with probability `acceptance` if those before did.

        answer: the target's own, by `plain`. instant: drafts come without the speculator's work.
        """
        ...

    async def draft_ms(self, ids: Int32Array, drafts: int) -> float:
        """Milliseconds in which the speculator, having read `ids`, drafts `drafts` tokens."""
        ...

    def memory(self) -> dict[str, Any]:
        """Peak bytes, by what the engine can tell."""
        ...
