"""What this router knows of the pools' caches and speeds: it forecasts a prompt's time to first token in both modes.

Every prompt teaches it, however its mode was chosen. All of it is this router's own knowledge: routers exchange
nothing.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.layout import NO_LAYOUT, TextLayout
from kv_transfer.messages import GenerateOutput, KeptPrompt, Selection
from kv_transfer.options import AUTO
from kv_transfer.prefix_hash import block_hashes
from router.decision.cache_ledger import BLOCK_TOKENS, CachedPrefix, CacheLedger, ends_of
from router.decision.cost_model import Mode, Reads, Work, estimate, fewer, sooner
from router.decision.forecast import Forecast, way_of
from router.decision.kept_sizes import KeptShares, KeptSizes
from router.decision.kinds import Kinds
from router.decision.later_turns import LaterTurns
from router.decision.pool_time import PoolTime, Speeds
from router.decision.target_caches import TargetCaches
from router.decision.window_reads import WindowReads
from router.options.request import PrefillOptions
from skim_common.models.costs import Read, ReadCost
from skim_common.models.info import ModelInfo


class Forecaster:
    """One router's knowledge. clock: seconds; the event loop's by default, which benchmarks can run in virtual time."""

    def __init__(self, clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()) -> None:
        self._clock = clock
        self.speculator, self.target = PoolTime(clock), PoolTime(clock)
        self.adapted = PoolTime(clock, beside=self.target)
        self.windows, self.lexical = PoolTime(clock), PoolTime(clock)
        self.caches = TargetCaches()
        self.read, self.read_in_windows = CacheLedger(), CacheLedger()
        self.turns = LaterTurns()
        self._shares, self.kinds = KeptShares(), Kinds()

    def speeds(self) -> dict[str, Speeds]:
        """How fast the pools read, as far as it is known: the speculator whole prompts, or else windows."""
        found = {"speculator": self.speculator.speeds or self.windows.speeds, "target": self.target.speeds}
        return {pool: speeds for pool, speeds in found.items() if speeds}

    def know(self, pool: str, model: ModelInfo, replicas: float) -> None:
        """What a replica of `speculator` or `target` tells of itself. replicas: of the pool, per router."""
        if pool == "speculator":
            self.speculator.cost = model.read_cost
            self.windows.cost = ReadCost(model.read_cost.linear)  # their attention does not grow with the prompt
            if model.cache_tokens:
                self.read.capacity = self.read_in_windows.capacity = replicas * model.cache_tokens
        else:
            self.target.cost = self.adapted.cost = model.read_cost
            if model.cache_tokens:
                self.caches.hold(replicas * model.cache_tokens)

    def look(
        self,
        ids: Int32Array,
        salt: str | None,
        options: PrefillOptions,
        layout: TextLayout = NO_LAYOUT,
        told: int | None = None,
        windows: WindowReads | None = None,
        *,
        adapted: bool = False,
        hashes: Sequence[bytes] | None = None,
    ) -> Forecast:
        """The forecast of a prompt. ids: int32 [M]. layout: without its units.

        told: how many later turns it has, if the client has told it (`router.options.headers`).
        windows, adapted, hashes: as in Forecast; hashes are computed if they are not known.
        """
        hashes = block_hashes(ids, BLOCK_TOKENS, salt) if hashes is None else hashes
        sizes = KeptSizes.of(int(ids.size), options.protect_last, layout)
        ledgers = self.caches.dense, self._read_ledger(windows), self.caches.kept
        dense, read, kept = (ledger.find(ids, hashes) for ledger in ledgers)
        coming = self.caches.coming(hashes)
        # What stands before all that may be dropped is the same for the target, whole or kept.
        alike = min(max(dense.tokens, coming), sizes.opening)
        if alike > kept.kept:
            kept = CachedPrefix(alike, alike, dense.age)
        share = self._shares.of(way_of(options, windows), options, sizes)
        forecast = Forecast(ids, salt, options, hashes, sizes, dense, read, kept, share, coming, windows, adapted)
        selector, target, later = self._selector(options, windows), self._target(forecast), 0.0
        # A conversation that has begun speculative has paid most already, so a guess at its end is not worth a change.
        if told is not None or forecast.before != "speculative":
            known = int(ids.size)
            later = self.turns.extra_ms(
                lambda new: selector.estimate(self._selector_read(windows, known + new, known)),
                target,
                known,
                round(sizes.kept(share)),
                share,
                told,
            )
        reads, corrections = self._reads(forecast, options), self.kinds.corrections(forecast.kind)
        expected = estimate(reads, selector, target, self._clock(), later, corrections)
        if expected is None:
            return replace(forecast, choice=fewer(reads, self.turns.extra_tokens(share, told or 0)))
        choice = sooner(expected, forecast.before)
        if options.enabled == AUTO:
            choice = self.kinds.tried(forecast.kind, choice, expected, forecast.before)
        return replace(forecast, estimate=expected, choice=choice)

    def sent(self, forecast: Forecast, prompt: KeptPrompt) -> AbstractContextManager[None]:
        """While the target has a prompt. Only a dense one is found by those that come behind it."""
        return self.caches.sent(forecast.hashes if forecast.is_whole(prompt) else ())

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

        reads_for_drafts: the speculator then reads the kept prompt, for drafts.
        """
        reads, target = self._reads(forecast, options), self._target(forecast)
        if not selects:
            return Work(0.0, target.estimate(reads.dense) or 0.0, most_tokens=most_tokens)
        read = self._selector(options, forecast.windows).estimate(reads.read)
        kept = target.estimate(reads.kept)
        drafts = self._drafts_ms(reads.kept) if reads_for_drafts else 0.0
        return Work(read or 0.0, kept or 0.0, True, most_tokens, drafts)

    def _drafts_ms(self, kept: Read) -> float:
        """The speculator's read of the kept prompt for drafts. Its sessions have what the target has cached of it.

        If only windows were read so far, their speed counts.
        """
        return self.speculator.estimate(kept) or self.windows.estimate(kept) or 0.0

    def _reads(self, forecast: Forecast, options: PrefillOptions) -> Reads:
        size, known = int(forecast.ids.size), self._known_kept(forecast, options)
        share = self._shares.of(way_of(options, forecast.windows), options, forecast.sizes)
        kept = self._kept_tokens(forecast, known, share)
        known_read = 0 if options.selector == "lexical" else forecast.read.tokens
        return Reads(
            dense=Read.of(size, forecast.known_dense),
            cold=Read.of(size),
            read=self._selector_read(forecast.windows, size, known_read),
            kept=Read.of(known.kept + kept, known.kept),
        )

    def _known_kept(self, forecast: Forecast, options: PrefillOptions) -> CachedPrefix:
        """What the target has cached of the kept prompt: without `reuse`, a new selection begins like the old one only
        as far as nothing may be dropped."""
        known, opening = forecast.kept, forecast.sizes.opening
        if options.reuse == "on":
            return known
        return CachedPrefix(min(known.tokens, opening), min(known.kept, opening), known.age)

    def _kept_tokens(self, forecast: Forecast, known: CachedPrefix, share: float) -> float:
        """The tokens that the target would read of the kept prompt: those of an extended one, or of a fresh selection
        if they are fewer (`speculator_service.scoring.extension`)."""
        sizes = forecast.sizes
        fresh = sizes.kept(share)
        if known.kept <= sizes.opening:
            return fresh - known.kept
        late = min(self.turns.late, known.tokens - known.kept)
        extended = max(fresh - known.kept, sizes.new(share, known.tokens) + late)
        return min(fresh - min(known.kept, sizes.opening), extended)

    def selected(self, forecast: Forecast, selection: Selection, options: PrefillOptions) -> Forecast:
        """Learn from a selection. Returns the forecast with its `select_ms`, if it was selected as expected."""
        queue = selection.timings.get("queue", 0.0)
        size, cached = int(forecast.ids.size), selection.cached_tokens
        windows = forecast.windows
        read = windows.read(size, cached) if windows else Read.of(size, cached)
        took = sum(selection.timings.values()) - queue
        self._selector(options, windows).measure(read, took, queue)
        if options.selector != "lexical":
            ledger = self._read_ledger(windows)
            ledger.correct(forecast.read, cached)
            self._speculator_wrote(read.tokens if windows is None else round(windows.tokens(size, cached)))
            ledger.add(forecast.ids, forecast.hashes, ends_of(forecast.hashes))
        if selection.kept.session is not None:
            self._speculator_wrote(selection.kept.token_ids.size)
        way, sizes = way_of(options, windows), forecast.sizes
        if selection.reused_tokens <= sizes.opening:
            self._shares.selected(way, options, sizes, int(selection.kept.token_ids.size))
        return replace(forecast, select_ms=took if options == forecast.options else None)

    def began(self, forecast: Forecast, prompt: KeptPrompt, cached: int, ms: float, queue_ms: float) -> None:
        """Learn from the target's first output: `queue_ms` in its queue, `ms` of prefill, `cached` cached tokens."""
        read, opening = Read.of(prompt.token_ids.size, cached), forecast.sizes.opening
        self._target(forecast).measure(read, ms, queue_ms)
        known = max(forecast.known_dense, forecast.kept.tokens)
        self.turns.began(int(forecast.ids.size) - opening, max(0, known - opening))
        self.caches.wrote(read.tokens)
        whole = forecast.is_whole(prompt)
        if whole:
            self.caches.dense.correct(forecast.dense, cached)
        else:
            self.caches.kept.correct(forecast.kept, cached)
            if forecast.before == "speculative":
                kept = forecast.sizes.new(forecast.share, forecast.kept.tokens)
                self.turns.extended(read.tokens - kept)
        if whole or forecast.select_ms is not None:
            self._compare(forecast, "dense" if whole else "speculative", ms)
        self.caches.add(forecast.ids, forecast.hashes, prompt, whole=whole)

    def _compare(self, forecast: Forecast, mode: Mode, ms: float) -> None:
        """Learn the error that the forecast has for prompts of this kind, now that the pools' times are those of this
        prompt too. ms: in the target."""
        selects, times = mode == "speculative", [self._target(forecast)]
        times += [self._selector(forecast.options, forecast.windows)] if selects else []
        expected = self.work(forecast, forecast.options, 0, selects=selects).total_ms
        took = ms + (forecast.select_ms or 0.0 if selects else 0.0)
        self.kinds.measured(forecast.kind, mode, expected if all(time.is_known for time in times) else None, took)

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
            if forecast.windows is None:
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

    def read_ms(self, forecast: Forecast, known: int, tokens: int) -> float | None:
        """The target's milliseconds for so many tokens of this prompt behind `known` cached ones."""
        return self._target(forecast).estimate(Read(tokens, known))

    def _target(self, forecast: Forecast) -> PoolTime:
        """The measured times of the target as it answers this prompt."""
        return self.adapted if forecast.adapted else self.target

    def _selector(self, options: PrefillOptions, windows: WindowReads | None) -> PoolTime:
        """The measured times of what selects with these options."""
        if options.selector == "lexical":
            return self.lexical
        return self.windows if windows else self.speculator

    def _selector_read(self, windows: WindowReads | None, size: int, known: int) -> Read:
        """What the selector computes of a prompt of `size` tokens if it has the first `known` ones cached."""
        if windows is None:
            return Read.of(size, known)
        return windows.read(size, windows.known(size, known))

    def _read_ledger(self, windows: WindowReads | None) -> CacheLedger:
        """The prefixes that the speculator has cached in this form."""
        return self.read_in_windows if windows else self.read

    def _speculator_wrote(self, tokens: int) -> None:
        for ledger in (self.read, self.read_in_windows):
            ledger.wrote(tokens)
