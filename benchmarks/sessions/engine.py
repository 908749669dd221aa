"""An engine in virtual time: vLLM's scheduler and prefix cache, with the times of `cluster.plan`.

A step has one token of each running answer, and prefills in the order of arrival, at most `chunk` tokens together
(vllm.v1.core.sched.scheduler). A prompt begins once there are blocks for it and its answer. Blocks that no running
request uses stay cached; the least recently used are evicted first, and of one prompt the last ones. An evicted block
may stay in CPU memory, and comes back at the speed of the bus while other requests run.

Not modelled: preemption, because a prompt reserves the blocks of its answer; CUDA graphs; sampling.
"""

import asyncio
import math
from collections import Counter, OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from cluster.plan import PlannedEngine
from kv_transfer.messages import KeptPrompt
from skim_common.models.costs import Read

BLOCK = 128
"""Tokens of a block. vLLM has 16 on a GPU, so it finds some 56 tokens more of a prompt."""
PCIE = 50e9
"""Bytes per second between CPU memory and one GPU: PCIe 5.0 x16. Assumed."""
MOST_ROWS = 256
"""vLLM's `max_num_seqs`."""


def blocks_of(prompt: KeptPrompt, salt: str | None = None) -> list[int]:
    """A number for each whole block, by the ids, positions and order of all tokens up to its end, and by the salt.

    They are sums of random numbers, one for each token at its place: a hash of a whole prompt costs a millisecond.
    """
    place = np.arange(prompt.token_ids.size, dtype=np.uint64)
    mixed = (prompt.token_ids.astype(np.uint64) << np.uint64(40)) ^ (
        prompt.positions.astype(np.uint64) << np.uint64(20)
    )
    for factor in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9):  # the mixing of SplitMix64
        mixed = (mixed ^ place) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(29)
    ends = np.cumsum(mixed)[BLOCK - 1 :: BLOCK] + np.uint64(crc32((salt or "").encode()))
    return ends.tolist()


class Blocks:
    """The KV blocks of an engine. offloaded: blocks that CPU memory holds besides. evicted: blocks so far."""

    def __init__(self, blocks: int, offloaded: int = 0) -> None:
        self._blocks, self._most_offloaded = blocks, offloaded
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._used = Counter[int]()
        self._private = 0  # of running requests, not hashed yet
        self._offloaded: OrderedDict[int, None] = OrderedDict()
        self.evicted = 0

    def match(self, hashes: Sequence[int]) -> tuple[int, int]:
        """The number of leading blocks that are in the GPU's memory, and of those behind them in the CPU's."""
        held = next((i for i, name in enumerate(hashes) if not self._holds(name)), len(hashes))
        both = next((i for i in range(held, len(hashes)) if not self._is_anywhere(hashes[i])), len(hashes))
        return held, both - held

    def _holds(self, name: int) -> bool:
        return name in self._used or name in self._cached

    def _is_anywhere(self, name: int) -> bool:
        return name in self._offloaded or self._holds(name)

    def take(self, hashes: Sequence[int], count: int) -> bool:
        """Use the cached blocks `hashes`, and take new ones up to `count`. False if there are not enough."""
        idle = sum(name not in self._used for name in hashes)
        new = count - len(hashes)
        if len(self._used) + self._private + idle + new > self._blocks:
            return False
        for name in hashes:
            self._cached.pop(name, None)
            self._used[name] += 1
        self._private += new
        while len(self._used) + self._private + len(self._cached) > self._blocks:
            self._cached.popitem(last=False)
            self.evicted += 1
        return True

    def give_back(self, taken: Sequence[int], count: int, written: Sequence[int]) -> None:
        """A request ends. taken, count: as in `take`. written: the hashes of all blocks that are full now."""
        for name in taken:
            self._used[name] -= 1
            if not self._used[name]:
                del self._used[name]
        self._private -= count - len(taken)
        for name in reversed(written):
            if name not in self._used:
                self._cached[name] = None
                self._cached.move_to_end(name)
            if self._most_offloaded:
                self._offloaded[name] = None
                self._offloaded.move_to_end(name)
        while len(self._offloaded) > self._most_offloaded:
            self._offloaded.popitem(last=False)


@dataclass(slots=True, eq=False)
class Running:
    """One request. taken: the cached blocks at its start. done: tokens whose KV is there. first: set at its first
    token, seconds. left: tokens of the answer that are still to come."""

    prompt: KeptPrompt
    hashes: Sequence[int]
    answer: int
    arrived: float
    taken: Sequence[int] = ()
    done: int = 0
    cached: int = 0
    loaded_at: float = 0.0
    began: float = 0.0
    left: int = 0
    first: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def size(self) -> int:
        return int(self.prompt.token_ids.size)

    @property
    def blocks(self) -> int:
        return -(-(self.size + self.answer) // BLOCK)


class SimulatedEngine:
    """planned: the model on its GPUs. tokens: that its KV cache holds. offloaded: that the CPU's memory holds.

    computed: tokens of prefills.
    """

    def __init__(self, planned: PlannedEngine, tokens: int, offloaded: int = 0) -> None:
        self.planned, self.tokens = planned, tokens
        self.blocks = Blocks(tokens // BLOCK, offloaded // BLOCK)
        self._waiting: deque[Running] = deque()
        self._rows: list[Running] = []
        self._bus_free = 0.0
        self._loop: asyncio.Task[None] | None = None
        self._arrived = asyncio.Event()
        self.computed = 0

    def submit(self, prompt: KeptPrompt, answer: int, salt: str | None = None) -> Running:
        """Begin a request. answer: its tokens, at least 1. `end` it in any case."""
        row = Running(prompt, blocks_of(prompt, salt), answer, self._now(), left=answer)
        if row.blocks > self.tokens // BLOCK:
            raise ValueError(f"a prompt of {row.size} tokens does not fit into a cache of {self.tokens}")
        self._waiting.append(row)
        self._arrived.set()
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._run())
        return row

    def end(self, row: Running, written: KeptPrompt, salt: str | None = None) -> None:
        """The request has ended, or is aborted. written: the tokens whose KV may be found: prompt and answer."""
        if row in self._waiting:
            self._waiting.remove(row)
            return
        self._rows.remove(row)
        whole = blocks_of(written, salt) if row.first.is_set() else row.hashes
        held = row.done + max(0, row.answer - row.left - 1)  # the last token's KV is not computed
        self.blocks.give_back(row.taken, row.blocks, whole[: held // BLOCK])

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _admit(self) -> None:
        while self._waiting and len(self._rows) < MOST_ROWS:
            row = self._waiting[0]
            held, offloaded = self.blocks.match(row.hashes[: (row.size - 1) // BLOCK])  # the last token is computed
            if not self.blocks.take(row.hashes[:held], row.blocks):
                return
            row.taken, row.began, row.loaded_at = row.hashes[:held], self._now(), self._now()
            row.done = row.cached = BLOCK * (held + offloaded)
            if offloaded:
                size = self.planned.kv_bytes(BLOCK * offloaded)
                self._bus_free = max(self._bus_free, self._now()) + size / PCIE
                row.loaded_at = self._bus_free
            self._rows.append(self._waiting.popleft())

    async def _run(self) -> None:
        while self._rows or self._waiting:
            self._admit()
            answers = [row for row in self._rows if row.first.is_set() and row.left]
            prefills = self._prefills(self.planned.chunk - len(answers))
            if not answers and not prefills:
                loads = [row.loaded_at - self._now() for row in self._rows if row.loaded_at > self._now()]
                await self._pass(min(loads, default=1e-3))
                continue
            seconds = self._step_s(answers, prefills)
            # Many steps that are alike, if nobody waits for their end.
            most = 1 if prefills or len(answers) < len(self._rows) else min(row.left for row in answers)
            steps = await self._pass(seconds, most)
            self._advance(answers, prefills, steps)
            await asyncio.sleep(0)  # those that have ended give their blocks back

    def _prefills(self, room: int) -> list[tuple[Running, int]]:
        """What the next step reads of each prompt, at most `room` tokens together."""
        found = list[tuple[Running, int]]()
        for row in self._rows:
            if not row.first.is_set() and row.loaded_at <= self._now() and room:
                found.append((row, min(room, row.size - row.done)))
                room -= found[-1][1]
        return found

    async def _pass(self, seconds: float, most: int = 1) -> int:
        """Let at most so many steps pass, each of `seconds`, up to the end of the one in which a request arrives."""
        began = self._now()
        self._arrived.clear()
        if most > 1:
            with suppress(TimeoutError):
                async with asyncio.timeout(most * seconds):
                    await self._arrived.wait()
        steps = min(most, max(1, math.ceil((self._now() - began) / seconds - 1e-6)))
        await asyncio.sleep(began + steps * seconds - self._now())
        return steps

    def _advance(self, answers: Sequence[Running], prefills: Sequence[tuple[Running, int]], steps: int) -> None:
        for row, tokens in prefills:
            row.done += tokens
            self.computed += tokens
        begun = [row for row, _ in prefills if row.done == row.size]
        for row in begun:
            row.first.set()
        for row in [*answers, *begun]:
            row.left -= steps
            if not row.left:
                row.ended.set()

    def _step_s(self, answers: Sequence[Running], prefills: Sequence[tuple[Running, int]]) -> float:
        planned = self.planned
        context = sum(row.size + row.answer - row.left for row in answers) / len(answers) if answers else 0.0
        decode = planned.step_s(len(answers), context) if answers else 0.0
        if not prefills:
            return decode
        tokens = sum(count for _, count in prefills)
        pairs = sum(count * (row.done + (count + 1) / 2) for row, count in prefills)
        read = planned.read_s(Read(tokens, max(0, round(pairs / tokens - (tokens + 1) / 2))))
        # The weights are read once for both.
        return read + (decode - planned.step_s(0, 0.0) if answers else 0.0)
