"""The promise to running streams (`target.stream_share`): while answers decode, reads of prompts take a bounded time.

A step that reads takes longer than one that only decodes, and each stream gets its token at the end of either. So the
streams keep a share of their speed if the mean step takes at most the time of a step without reads, divided by the
share. What a step takes beyond that is owed to the streams. While time is owed, steps only decode. Else a step reads as
many tokens as it may by the measured time of a token, and at least a few, whose excess is owed then.

An engine of the same machine that reads (`vllm_hooks.machine_flags`) slows the streams, too. What that costs them is
owed as well, and such an engine waits while time is owed.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

from skim_common.errors import SkimError
from skim_common.symbols import Hook
from vllm_hooks.machine_flags import OWED, READING, STREAM_SHARE, MachineFlags

FEWEST_TOKENS = 128
"""Tokens of a step that reads, at least: fewer would use cores and GPUs badly."""
MOST_OWED_S = 2.0
"""A step may take long for another reason, such as a kernel that is compiled. Not more than this is owed for it."""
MOST_READS = 32
"""Steps that read, one after the other: then one without reads is measured again."""
WEIGHT = 0.2
"""Of the newest measurement in a running mean."""

_STEP = "skim_stream_step"
_SCHEDULER = "vllm.v1.core.sched.scheduler"
HOOK = Hook(
    what="the share of running streams",
    how=(
        "vLLM: with `target.stream_share`, a mixin of both schedulers lowers `max_num_scheduled_tokens` for a step, or"
        " lets it defer prompts by `throttle_prefills`; requests that decode come first in `running`"
    ),
    until="vLLM's scheduler bounds the time that reads take of steps with running answers",
    symbols=(
        (_SCHEDULER, "Scheduler.schedule", "self throttle_prefills"),
        (_SCHEDULER, "Scheduler.update_from_output", "self scheduler_output model_runner_output"),
        (_SCHEDULER, "Scheduler.max_num_scheduled_tokens", ""),
        (_SCHEDULER, "Scheduler.prefill_capacity_bound", ""),
        ("vllm.v1.request", "Request.is_prefill_chunk", ""),
    ),
)


class StreamAccount:
    """What is owed to the streams, and so what the next step may read. Pure; times in seconds.

    share: of the speed that streams have without reads. fewest: tokens of a step that reads, at least.
    """

    def __init__(self, share: float, fewest: int = FEWEST_TOKENS) -> None:
        self._share, self._fewest = share, fewest
        self.owed, self._under_way = 0.0, 0.0
        self._alone: float | None = None
        self._per_token: float | None = None
        self._reads = 0

    def tokens(self) -> int:
        """The tokens of prompts that the next step may read; 0 for a step that only decodes."""
        owed = self.owed + self._under_way
        if self._alone is None or owed > 0 or self._reads >= MOST_READS:
            return 0
        if not self._per_token:
            return self._fewest
        return max(self._fewest, int((self._free(self._alone) - owed) / self._per_token))

    def begun(self, reads: int) -> float:
        """A step with streams begins, which reads so many tokens. Returns what it will owe, for `ran`."""
        self._reads = self._reads + 1 if reads else 0
        if not reads or self._alone is None:
            return 0.0
        # vLLM may schedule a step before it has the time of the last one.
        expected = self._alone + reads * self._per_token if self._per_token else MOST_OWED_S
        expected -= self._alone / self._share
        self._under_way += expected
        return expected

    def ran(self, seconds: float, reads: int, *, slowed: bool, expected: float) -> None:
        """A step with streams took so long. slowed: another engine of the machine read meanwhile."""
        self._under_way -= expected
        if self._alone is None:
            self._alone = None if reads else seconds
            return
        if not reads and not slowed:
            self._alone = _mean(self._alone, seconds)
            owed = self.owed - self._free(seconds)
        else:
            if reads >= self._fewest:
                self._per_token = _mean(self._per_token, max(seconds - self._alone, 0.0) / reads)
            owed = self.owed + seconds - self._alone / self._share
        # What one step does not use, the next may use: else each small error would end a step without reads.
        self.owed = min(max(owed, -self._free(self._alone)), MOST_OWED_S)

    def _free(self, alone: float) -> float:
        """The time that reads may take of a step which takes `alone` without them."""
        return alone * (1 / self._share - 1)

    def rest(self) -> None:
        """No stream runs: nothing is owed, and others will have a speed of their own."""
        self.owed, self._alone, self._reads = 0.0, None, 0


def _mean(before: float | None, new: float) -> float:
    return new if before is None else before + WEIGHT * (new - before)


def check_chunks(config: Any) -> None:
    """Raise SkimError for an engine with a stream share that cannot read a prompt in parts. config: VllmConfig."""
    if STREAM_SHARE in (config.additional_config or {}) and not config.scheduler_config.enable_chunked_prefill:
        raise SkimError(
            "target.stream_share bounds the parts in which prompts are read, and this engine reads each whole: set"
            " target.engine_options.enable_chunked_prefill to true, or remove stream_share"
        )


class _Step(NamedTuple):
    """A scheduled step with streams. at: when. reads, expected, slowed: as in `StreamAccount`."""

    at: float
    reads: int
    expected: float
    slowed: bool


class StreamShare:
    """Scheduler mixin that bounds what a step reads while answers decode, if the engine has a stream share."""

    clock: Callable[[], float] = staticmethod(time.perf_counter)
    vllm_config: Any
    running: list[Any]
    block_size: int
    max_num_scheduled_tokens: int

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        share = (self.vllm_config.additional_config or {}).get(STREAM_SHARE)
        self._account: StreamAccount | None = None
        if share is not None:
            # States of linear attention are computed by whole blocks.
            self._account = StreamAccount(share, max(FEWEST_TOKENS, self.block_size))
            self._flags, self._updated = MachineFlags(), 0.0

    def schedule(self, throttle_prefills: bool = False) -> Any:
        if self._account is None:
            return super().schedule(throttle_prefills)  # type: ignore[misc]
        streams = self._streams()
        if not streams:
            self._account.rest()
            return super().schedule(throttle_prefills)  # type: ignore[misc]
        at, slowed = self.clock(), self._flags.seen(READING)
        output = self._schedule(streams, self._account.tokens())
        decoded = sum(output.num_scheduled_tokens.get(request.request_id, 0) for request in streams)
        reads = output.total_num_scheduled_tokens - decoded
        setattr(output, _STEP, _Step(at, reads, self._account.begun(reads), slowed))
        return output

    def _streams(self) -> list[Any]:
        return [request for request in self.running if not request.is_prefill_chunk]

    def _schedule(self, streams: list[Any], tokens: int) -> Any:
        """A step that decodes and reads at most so many tokens."""
        if not tokens:
            self.prefill_capacity_bound = False  # else vLLM defers nothing
            return super().schedule(True)  # type: ignore[misc]
        # vLLM gives out the tokens in this order.
        self.running.sort(key=lambda request: request.is_prefill_chunk)
        most: int = self.max_num_scheduled_tokens
        decoded = sum(
            request.num_tokens_with_spec + request.num_output_placeholders - request.num_computed_tokens
            for request in streams
        )
        self.max_num_scheduled_tokens = min(most, decoded + tokens)
        try:
            return super().schedule()  # type: ignore[misc]
        finally:
            self.max_num_scheduled_tokens = most

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        outputs = super().update_from_output(scheduler_output, model_runner_output)  # type: ignore[misc]
        if self._account is not None:
            self._settle(self._account, getattr(scheduler_output, _STEP, None))
        return outputs

    def _settle(self, account: StreamAccount, step: _Step | None) -> None:
        now, before = self.clock(), self._updated
        self._updated = now
        if step is not None:
            slowed = step.slowed or self._flags.seen(READING)
            account.ran(now - max(step.at, before), step.reads, slowed=slowed, expected=step.expected)
        if not self._streams():
            account.rest()
        self._flags.hold(OWED, account.owed > 0)
