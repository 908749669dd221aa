"""The interface of a pair of models to the measurements."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions


@dataclass
class Timed:
    """One run. ms: from the request to the first token. parts: milliseconds by name. kept: the kept prompt."""

    ms: float
    kept: KeptPrompt
    parts: dict[str, float] = field(default_factory=dict)


@dataclass
class Decoded:
    """One answer. ids: the whole answer. seconds: from its first token to its last. tokens: number after the first one.

    verifications: forwards of the target with drafts. accepted: number of accepted drafts.
    """

    ids: list[int]
    seconds: float
    tokens: int
    verifications: int = 0
    accepted: int = 0


class MeasuredPair(Protocol):
    """A target and a speculator on one device. Every call runs its whole prefill; nothing comes from a prefix cache."""

    stock: bool
    """Whether `plain` can also decode on a target engine that was started without drafting."""

    async def dense(self, ids: Int32Array) -> float:
        """Milliseconds to the first token when the target reads all of `ids`."""
        ...

    async def skim(self, ids: Int32Array, options: SelectionOptions) -> Timed:
        """Select with the speculator, then run the target to its first token from the kept prompt."""
        ...

    async def read(self, ids: Int32Array, window: int | None = None) -> float:
        """Milliseconds of the speculator's forward over `ids` alone, or over windows of so many tokens at once."""
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
        """Decode with `drafts` drafts per step. Each is accepted with probability `acceptance` if those before it are.

        answer: the target's own, from `plain`. instant: the speculator does not draft.
        """
        ...

    async def draft_ms(self, ids: Int32Array, drafts: int) -> float:
        """Milliseconds that the speculator takes to draft `drafts` tokens after its prefill of `ids`."""
        ...

    def memory(self) -> dict[str, Any]:
        """Bytes of memory, by name."""
        ...
