"""The forecast of one prompt: what is known of it before it runs. `router.decision.forecaster` makes it."""

from collections.abc import Sequence
from dataclasses import dataclass

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import KeptPrompt
from router.decision.cache_ledger import BLOCK_TOKENS, CachedPrefix
from router.decision.cost_model import UNMEASURED, Estimate, Mode
from router.decision.kept_sizes import KeptSizes
from router.decision.kinds import Kind
from router.decision.rules import Decision
from router.decision.window_reads import WindowReads
from router.options.request import PrefillOptions


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known of a prompt before it runs.

    options: of the request. sizes: what a selection keeps. dense, read, kept: its cached beginnings, in the target as
    it is, in the speculator, and in the target as it was kept. share: the share that a selection keeps of what may be
    dropped. coming: tokens at the beginning that the target reads now for other dense prompts. windows: how the
    speculator reads it, if in windows. adapted: whether an adapter answers, with which the target reads more slowly.
    estimate: None before both pools have been measured often enough. choice: the mode whose first token is sooner, and
    why (`router.decision.cost_model`). select_ms: what the selection took, once there is one.
    """

    ids: Int32Array
    salt: str | None
    options: PrefillOptions
    hashes: Sequence[bytes]
    sizes: KeptSizes
    dense: CachedPrefix
    read: CachedPrefix
    kept: CachedPrefix
    share: float = 1.0
    coming: int = 0
    windows: WindowReads | None = None
    adapted: bool = False
    estimate: Estimate | None = None
    choice: Decision = UNMEASURED
    select_ms: float | None = None

    @property
    def kind(self) -> Kind:
        size = int(self.ids.size)
        parts = self.known_dense, self.kept.tokens, size - self.sizes.droppable
        way = way_of(self.options, self.windows)
        return way, int(self.adapted), size.bit_length() // 2, *(round(2 * part / size) for part in parts)

    def is_whole(self, prompt: KeptPrompt) -> bool:
        """Whether the target reads all tokens of this forecast, in their order."""
        return prompt.token_ids.size == self.ids.size and prompt.is_ascending

    @property
    def known_dense(self) -> int:
        """Tokens at the beginning that the target will have cached as they are when it reads this prompt."""
        return max(self.dense.tokens, self.coming)

    @property
    def before(self) -> Mode | None:
        """How the earlier turn of this prompt ran, if there was one. What stands before all turns says nothing."""
        dense, kept = (self._of_turns(known) for known in (self.known_dense, self.kept.tokens))
        if dense == kept:
            return None
        return "dense" if dense > kept else "speculative"

    def _of_turns(self, known: int) -> int:
        """The known tokens behind the opening; 0 if they may be words with which two prompts happen to begin."""
        behind = known - self.sizes.opening
        return behind if behind >= BLOCK_TOKENS else 0


def way_of(options: PrefillOptions, windows: WindowReads | None) -> str:
    """How a prompt is scored."""
    return "lexical" if options.selector == "lexical" else "windows" if windows else "whole"
