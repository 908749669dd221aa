"""How drafts and prompts share the engine's time. Decisions from a clock alone; `scheduler` carries them out.

vLLM fills each step with the running prompts, and a target waits for a draft a few hundred milliseconds at most. So
while there are both, each gets half of the engine's time (`TimeSlices`), and steps that read prompts are short
(`PromptLimit`): one of 16384 tokens takes an estimated 0.45 s for 8B parameters on an H100.
"""

import time
from collections.abc import Callable

LONGEST_STEP_S = 0.0625
"""A quarter of the default deadline of the draft channel (`draft_channel.deadline_ms`)."""
ALIVE_S = 2.0
"""Sessions count as drafting for this long after their last round."""
FEWEST_TOKENS = 256
"""Steps with fewer tokens use a GPU badly."""
WEIGHT = 0.3


class TimeSlices:
    """After a step with prompts, drafts get as much time for themselves. clock: seconds."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._began = clock()
        self._left = 0.0
        self._alone, self._read = False, False

    def begin(self, *, drafts: bool, prompts: bool) -> bool:
        """Call it when a step begins. Returns whether this step runs drafts without prompts."""
        now = self._clock()
        took, self._began = now - self._began, now
        self._left = self._left - took if self._alone else took * self._read
        self._alone = prompts and drafts and self._left > 0
        self._read = prompts and not self._alone
        return self._alone

    def give_up(self) -> None:
        """The drafts could not use their time."""
        self._left = 0.0


class PromptLimit:
    """The number of tokens of a step, from the measured speed of the steps that read prompts. Call `begin` when a step
    begins and `scheduled` with its tokens."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._drafted: float | None = None
        self._speed: float | None = None
        self._step: tuple[float, int] | None = None

    def begin(self, *, drafts: bool, prompts: bool) -> None:
        """drafts, prompts: whether there are rounds, and prompts that are running or waiting: without, the engine may
        have been idle since the last step, whose time is then not measured."""
        now = self._clock()
        if drafts:
            self._drafted = now
        if self._step and prompts and now > self._step[0]:
            speed = self._step[1] / (now - self._step[0])
            self._speed = speed if self._speed is None else self._speed + WEIGHT * (speed - self._speed)
        self._step = None

    def scheduled(self, tokens: int) -> None:
        """The step that has begun reads this many tokens of prompts."""
        if tokens >= FEWEST_TOKENS:
            self._step = self._clock(), tokens

    def tokens(self, most: int) -> int:
        """The number of tokens that the next step may have. most: without this limit."""
        if self._drafted is None or self._speed is None or self._clock() - self._drafted > ALIVE_S:
            return most
        return min(most, max(FEWEST_TOKENS, int(self._speed * LONGEST_STEP_S)))
