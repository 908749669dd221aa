"""The forecast of a prompt's time to first token in both modes, from what this router knows of the pools.

Every prompt teaches it, however its mode was chosen. Routers exchange nothing of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.messages import GenerateOutput, KeptPrompt, Selection
from kv_transfer.prefix_hash import block_hashes
from router.decision.choice import UNMEASURED, Decision, Estimate, Mode, Reads, Work, estimate, fewer, sooner
from router.decision.conversations import LaterTurns
from router.decision.ledger import BLOCK_TOKENS, CachedPrefix, CacheLedger, TargetCaches, ends_of
from router.decision.pool_time import PoolTime
from router.decision.sizes import KeptShares, KeptSizes, WindowReads
from router.options.request import PrefillOptions
from skim_common.models.costs import Read, ReadCost
from skim_common.models.info import ModelInfo


@dataclass(frozen=True, slots=True)
class Forecast:
    """What is known of a prompt before it runs."""

    ids: Int32Array  # [M]
    salt: str | None
    options: PrefillOptions
    hashes: Sequence[bytes]  # of the prompt's blocks
    sizes: KeptSizes
    dense: CachedPrefix  # what the target has cached of it as it is
    read: CachedPrefix  # what the speculator has cached
    kept: CachedPrefix  # what the target has cached of it as it was kept
    coming: int  # tokens at the beginning that the target reads now for other dense prompts
    share: float  # what a selection keeps of what may be dropped
    windows: WindowReads | None  # how the speculator reads it, if in windows
    adapted: bool  # an adapter answers, with which the target reads more slowly
    estimate: Estimate | None = None  # None before both pools have been measured often enough
    choice: Decision = UNMEASURED  # the mode whose first token is sooner, and why

    @property
    def size(self) -> int:
        return int(self.ids.size)

    @property
    def way(self) -> str:
        """How the prompt is scored."""
        return _way(self.options, self.windows)

    def is_whole(self, prompt: KeptPrompt) -> bool:
        """Whether the target reads all tokens of this forecast, in their order."""
        return prompt.token_ids.size == self.ids.size and prompt.is_ascending

    @property
    def known_dense(self) -> int:
        """Tokens at the beginning that the target will have cached as they are when it reads this prompt."""
        return max(self.dense.tokens, self.coming)

    @property
    def before(self) -> Mode | None:
        """How the earlier turn of this prompt ran, if there was one. What stands before all turns says nothing, nor do
        a few words behind it, with which two prompts may happen to begin."""
        behind = (known - self.sizes.opening for known in (self.known_dense, self.kept.tokens))
        dense, kept = (tokens if tokens >= BLOCK_TOKENS else 0 for tokens in behind)
        if dense == kept:
            return None
        return "dense" if dense > kept else "speculative"


class Forecaster:
    """One router's knowledge. clock: seconds; the event loop's by default, which benchmarks can run in virtual time."""

    def __init__(self, clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()) -> None:
        self._clock = clock
        self.speculator, self.windows, self.lexical = PoolTime(clock), PoolTime(clock), PoolTime(clock)
        self.target = PoolTime(clock)
        self.adapted = PoolTime(clock, beside=self.target)
        self.caches = TargetCaches()
        self.read, self.read_in_windows = CacheLedger(), CacheLedger()
        self.turns = LaterTurns()
        self._shares = KeptShares()

    def know(self, pool: str, model: ModelInfo, replicas: float) -> None:
        """What a replica of `speculator` or `target` tells of itself. replicas: of the pool, per router."""
        if pool == "speculator":
            self.speculator.cost = model.read_cost
            self.windows.cost = ReadCost(model.read_cost.linear)  # their attention does not grow with the prompt
            ledgers = self.read, self.read_in_windows
        else:
            self.target.cost = self.adapted.cost = model.read_cost
            ledgers = self.caches.dense, self.caches.kept
        for ledger in ledgers if model.cache_tokens else ():
            ledger.capacity = replicas * model.cache_tokens

    def look(
        self,
        ids: Int32Array,
        salt: str | None,
        options: PrefillOptions,
        layout: TextLayout = NO_LAYOUT,
        later_requests: int | None = None,
        windows: WindowReads | None = None,
        *,
        adapted: bool = False,
        hashes: Sequence[bytes] | None = None,
    ) -> Forecast:
        """The forecast of a prompt. layout: without its units. later_requests: the client's number of them
        (`router.options.headers`). hashes: computed if they are not known. The others: as in Forecast."""
        hashes = block_hashes(ids, BLOCK_TOKENS, salt) if hashes is None else hashes
        sizes = KeptSizes.of(int(ids.size), options.protect_last, layout)
        dense, kept = self.caches.dense.find(ids, hashes), self.caches.kept.find(ids, hashes)
        coming = self.caches.coming(hashes)
        # What stands before all that may be dropped is the same for the target, whole or kept.
        alike = min(max(dense.tokens, coming), sizes.opening)
        if alike > kept.kept:
            kept = CachedPrefix(alike, alike, dense.age)
        forecast = Forecast(
            ids=ids,
            salt=salt,
            options=options,
            hashes=hashes,
            sizes=sizes,
            dense=dense,
            read=(self.read_in_windows if windows else self.read).find(ids, hashes),
            kept=kept,
            coming=coming,
            share=self._shares.of(_way(options, windows), options, sizes),
            windows=windows,
            adapted=adapted,
        )
        return self._choose(forecast, later_requests)

    def _choose(self, forecast: Forecast, later_requests: int | None) -> Forecast:
        """The forecast with its estimate and choice."""
        selector, target, reads = self._selector(forecast), self._target(forecast), self._reads(forecast)
        later, share = 0.0, forecast.share
        # A conversation that has begun speculative has paid most already, so a guess at its end is not worth a change.
        if later_requests is not None or forecast.before != "speculative":
            kept = round(forecast.sizes.kept(share))
            later = self.turns.extra_ms(
                lambda new: selector.estimate(_selector_read(forecast, forecast.size, new)),
                target,
                forecast.size,
                kept,
                share,
                later_requests,
            )
        expected = estimate(reads, selector, target, self._clock(), later)
        if expected is None:
            return replace(forecast, choice=fewer(reads, self.turns.extra_tokens(share, later_requests or 0)))
        return replace(forecast, estimate=expected, choice=sooner(expected, forecast.before))

    def _reads(self, forecast: Forecast, options: PrefillOptions | None = None) -> Reads:
        """What each pool would read. options: with which less is kept; None: the forecast's."""
        options = options or forecast.options
        known, share = forecast.kept, self._shares.of(forecast.way, options, forecast.sizes)
        if options.reuse == "off":
            # A new selection begins like the old one only as far as nothing may be dropped.
            opening = forecast.sizes.opening
            known = CachedPrefix(min(known.tokens, opening), min(known.kept, opening), known.age)
        return Reads(
            dense=Read.of(forecast.size, forecast.known_dense),
            read=_selector_read(forecast, 0 if forecast.way == "lexical" else forecast.read.tokens),
            kept=Read.of(known.kept + self._kept_tokens(forecast.sizes, known, share), known.kept),
        )

    def _kept_tokens(self, sizes: KeptSizes, known: CachedPrefix, share: float) -> float:
        """The tokens that the target would read of the kept prompt: those of an extended one, or of a fresh selection
        if they are fewer (`speculator_service.selection.extension`)."""
        fresh = sizes.kept(share)
        if known.kept <= sizes.opening:
            return fresh - known.kept
        late = min(self.turns.late, known.tokens - known.kept)
        extended = max(fresh - known.kept, sizes.new(share, known.tokens) + late)
        return min(fresh - min(known.kept, sizes.opening), extended)

    def work(
        self,
        forecast: Forecast,
        options: PrefillOptions,
        most_tokens: int,
        *,
        selects: bool,
        reads_for_drafts: bool = False,
    ) -> Work:
        """The computing until the first token, speculative if `selects`; 0 in a pool that has not been measured.

        reads_for_drafts: the speculator then reads the kept prompt, for drafts: its sessions have what the target has
        cached of it. If only windows were read so far, their speed counts.
        """
        reads, target = self._reads(forecast, options), self._target(forecast)
        if not selects:
            return Work(0.0, target.estimate(reads.dense) or 0.0, most_tokens=most_tokens)
        read, kept, drafts = self._selector(forecast).estimate(reads.read), target.estimate(reads.kept), None
        if reads_for_drafts:
            drafts = self.speculator.estimate(reads.kept) or self.windows.estimate(reads.kept)
        return Work(read or 0.0, kept or 0.0, True, most_tokens, drafts or 0.0)

    def read_ms(self, forecast: Forecast, known: int, tokens: int) -> float | None:
        """The target's milliseconds for so many tokens of this prompt behind `known` cached ones."""
        return self._target(forecast).estimate(Read(tokens, known))

    def sent(self, forecast: Forecast, prompt: KeptPrompt) -> AbstractContextManager[None]:
        """While the target has a prompt. Only a dense one is found by those that come behind it."""
        return self.caches.reading(forecast.hashes if forecast.is_whole(prompt) else ())

    def selected(self, forecast: Forecast, selection: Selection, options: PrefillOptions) -> None:
        """Learn from a selection. options: it was made by them."""
        queue, cached = selection.timings.get("queue", 0.0), selection.cached_tokens
        took = sum(selection.timings.values()) - queue
        windows, sizes = forecast.windows, forecast.sizes
        read = windows.read(cached) if windows else Read.of(forecast.size, cached)
        self._selector(forecast).measure(read, took, queue)
        if forecast.way != "lexical":
            ledger = self.read_in_windows if windows else self.read
            ledger.correct(forecast.read, cached)
            self._speculator_wrote(round(windows.tokens(cached)) if windows else read.tokens)
            ledger.add(forecast.ids, forecast.hashes, ends_of(forecast.hashes))
        if selection.kept.session is not None:
            self._speculator_wrote(selection.kept.token_ids.size)
        if selection.reused_tokens <= sizes.opening:
            self._shares.selected(forecast.way, options, sizes, int(selection.kept.token_ids.size))

    def began(self, forecast: Forecast, prompt: KeptPrompt, cached: int, ms: float, queue_ms: float) -> None:
        """Learn from the target's first output: `queue_ms` in its queue, `ms` of prefill, `cached` cached tokens."""
        read, opening = Read.of(prompt.token_ids.size, cached), forecast.sizes.opening
        self._target(forecast).measure(read, ms, queue_ms)
        known = max(forecast.known_dense, forecast.kept.tokens)
        self.turns.began(forecast.size - opening, max(0, known - opening))
        self.caches.wrote(read.tokens)
        whole = forecast.is_whole(prompt)
        if whole:
            self.caches.dense.correct(forecast.dense, cached)
        else:
            self.caches.kept.correct(forecast.kept, cached)
            if forecast.before == "speculative":
                self.turns.extended(read.tokens - forecast.sizes.new(forecast.share, forecast.kept.tokens))
        self.caches.add(forecast.ids, forecast.hashes, prompt, whole=whole)

    def ended(self, forecast: Forecast, prompt: KeptPrompt, answer: Int32Array) -> None:
        """Learn that the caches also hold the answer: the next turn begins with prompt and answer."""
        if not answer.size:
            return
        self.caches.wrote(int(answer.size))
        whole = np.concatenate([forecast.ids, answer])
        hashes = block_hashes(whole, BLOCK_TOKENS, forecast.salt, known=forecast.hashes)
        self.caches.add(whole, hashes, prompt, whole=forecast.is_whole(prompt))
        if prompt.session is not None:
            self._speculator_wrote(int(answer.size))
            if forecast.way == "whole":
                self.read.add(whole, hashes, ends_of(hashes))

    def read_behind(self, forecast: Forecast, ids: Int32Array, hashes: Sequence[bytes], output: GenerateOutput) -> None:
        """Learn that the target has read `ids` [N], a beginning of this prompt and its answer, for no client.

        hashes: of its blocks. output: the target's first one.
        """
        read = Read.of(int(ids.size), output.cached_tokens)
        if not output.prompt_logprobs and "prefill" in output.timings:
            self._target(forecast).measure(read, output.timings["prefill"], output.timings.get("queue", 0.0))
        self.caches.wrote(read.tokens)
        self.caches.dense.add(ids, hashes, ends_of(hashes))

    def _target(self, forecast: Forecast) -> PoolTime:
        """The measured times of the target as it answers this prompt."""
        return self.adapted if forecast.adapted else self.target

    def _selector(self, forecast: Forecast) -> PoolTime:
        """The measured times of what selects from this prompt."""
        return {"lexical": self.lexical, "windows": self.windows, "whole": self.speculator}[forecast.way]

    def _speculator_wrote(self, tokens: int) -> None:
        for ledger in (self.read, self.read_in_windows):
            ledger.wrote(tokens)


def _way(options: PrefillOptions, windows: WindowReads | None) -> str:
    """How a prompt is scored."""
    return "lexical" if options.selector == "lexical" else "windows" if windows else "whole"


def _selector_read(forecast: Forecast, known: int, new: int = 0) -> Read:
    """What the selector computes if it has the first `known` tokens cached. new: so many tokens behind the prompt."""
    if forecast.windows is None:
        return Read.of(forecast.size + new, known)
    return forecast.windows.read(forecast.windows.known(known, new), new)
