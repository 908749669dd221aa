"""Sessions of agents at 70B and 1B in virtual time: stock vLLM and Skim in the same KV memory.

Each of N users has one session after another. A prompt follows the earlier answer after the gap of its trace (a closed
loop). Users begin in the middle of a session, and what is asked in the first `WARM_UP_S` is not counted.

The stock server has the target's GPUs. Skim's target has as many, and its speculator one more; the KV caches of both
hold as many bytes as the stock server's. So per GPU, Skim's sessions are divided by one GPU more.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from transformers import AutoConfig

from benchmarks.gpu.presets import POSITIONS, Preset, configs
from benchmarks.harness import virtual_time
from benchmarks.sessions.engine import BLOCK, SimulatedEngine
from benchmarks.sessions.pools import VOCABULARY, SimulatedPools, generated
from benchmarks.sessions.prompts import SessionPrompt, grown
from benchmarks.sessions.traces import Session
from cluster.plan import GIB, Machine, Model, PlannedEngine
from kv_transfer.arrays import Int32Array
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from router.dispatch.dispatcher import Dispatcher
from router.dispatch.request import Prompt, Request
from router.dispatch.state import CallState
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim.engines import Unmetered
from skim_common.errors import SkimError

WARM_UP_S = 1800.0
LONGEST_S = 40 * 3600.0
SPECULATOR_MEMORY = 0.1
"""The speculator's part of Skim's KV memory: with a tenth of the target's bytes per token, as many tokens."""
PAIR = Preset("llama-70b", "llama-1b")
LEAST_TOKENS = 200_000


@dataclass(frozen=True, slots=True)
class Hardware:
    """ranks: GPUs of the target. offload_gib: CPU memory for KV blocks."""

    gpu: Machine
    ranks: int
    offload_gib: float


@dataclass(frozen=True, slots=True)
class System:
    """What serves. catch_up: of Skim. kv_bits: of a number in all KV caches. offload: blocks stay in CPU
    memory."""

    skim: bool = False
    catch_up: bool = False
    kv_bits: int = 16
    offload: bool = False

    @property
    def name(self) -> str:
        parts = ["Skim" if self.skim else "stock", "catch-up" if self.catch_up else ""]
        return ", ".join(
            filter(None, [*parts, "FP8 KV" if self.kv_bits == 8 else "", "offload" if self.offload else ""])
        )


@dataclass(frozen=True, slots=True)
class Asked:
    """One turn. cached: tokens that the target found in its cache. kept: what it received of the prompt."""

    first_s: float
    size: int
    cached: int
    kept: int
    reason: str


@dataclass(frozen=True, slots=True)
class Simulated:
    """users: N. seconds: of the measurement. In it, evicted: tokens that left the target's cache. computed: tokens that
    the target prefilled, also for no client."""

    users: int
    asked: Sequence[Asked]
    seconds: float
    evicted: int
    computed: int


@cache
def model(name: str) -> Model:
    """`target` or `speculator` of the pair of 70B and 1B, from its config alone."""
    settings = dict(zip(("target", "speculator"), configs(PAIR), strict=True))[name]
    return replace(Model.of(name, AutoConfig.for_model(**settings)), positions=POSITIONS)


def engines(hardware: Hardware, system: System) -> tuple[SimulatedEngine, SimulatedEngine | None]:
    """The target, and Skim's speculator. Raises SkimError if the target does not fit."""
    machine = hardware.gpu
    target = PlannedEngine(model("target"), machine, hardware.ranks, kv_bits=system.kv_bits)
    if target.kv_room < LEAST_TOKENS * target.kv_bytes(1):
        raise SkimError(f"{hardware.ranks} x {hardware.gpu.name} have no room for 70B and {LEAST_TOKENS:,} tokens")
    size = target.kv_room * hardware.ranks
    offloaded = hardware.offload_gib * GIB / _token_bytes(target) if system.offload else 0
    if not system.skim:
        return SimulatedEngine(target, int(size / _token_bytes(target)), int(offloaded)), None
    speculator = PlannedEngine(model("speculator"), machine, kv_bits=system.kv_bits)
    held = int((1 - SPECULATOR_MEMORY) * size / _token_bytes(target))
    return (
        SimulatedEngine(target, held, int(offloaded)),
        SimulatedEngine(speculator, int(SPECULATOR_MEMORY * size / _token_bytes(speculator))),
    )


def _token_bytes(engine: PlannedEngine) -> float:
    return engine.ranks * engine.kv_bytes(1)


def simulate(
    sessions: Sequence[Session], users: int, system: System, hardware: Hardware, keep_rate: float, turns: int
) -> Simulated:
    """Until about `turns` turns are counted, or LONGEST_S have passed."""
    return virtual_time.run(_Simulation(sessions, system, hardware, keep_rate, turns).run(users))


class _Simulation:
    def __init__(
        self, sessions: Sequence[Session], system: System, hardware: Hardware, keep_rate: float, turns: int
    ) -> None:
        self._sessions, self._most = sessions, turns
        self._target, speculator = engines(hardware, system)
        self._options = PrefillOptions(
            keep_rate=keep_rate,
            catch_up="auto" if system.catch_up else "off",
        )
        self._asked: list[Asked] = []
        self._done = asyncio.Event()
        self._pools = None if speculator is None else SimulatedPools(self._target, speculator)
        if self._pools is not None:
            settings = RouterConfig(max_wait_s=None)
            self._dispatcher = Dispatcher(self._pools, self._options, SpeculationOptions(), settings, Unmetered())

    async def run(self, users: int) -> Simulated:
        tasks: list[asyncio.Task[Any]] = [asyncio.create_task(self._user(n, users)) for n in range(users)]
        tasks.append(asyncio.create_task(self._done.wait()))
        await asyncio.wait(tasks, timeout=WARM_UP_S, return_when=asyncio.FIRST_COMPLETED)
        before = self._counts()
        await asyncio.wait(tasks, timeout=LONGEST_S, return_when=asyncio.FIRST_COMPLETED)
        evicted, computed = self._counts() - before
        for task in tasks:
            task.cancel()
        if self._pools is not None:
            self._dispatcher.catch_ups.close()
        for error in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(error, Exception):
                raise error
        seconds = asyncio.get_running_loop().time() - WARM_UP_S
        return Simulated(users, self._asked, seconds, int(evicted), int(computed))

    def _counts(self) -> np.ndarray:
        return np.array([BLOCK * self._target.blocks.evicted, self._target.computed])

    async def _user(self, number: int, users: int) -> None:
        choose = random.Random(number)
        await asyncio.sleep(choose.uniform(0, WARM_UP_S / 6))
        first = choose.randrange(len(self._sessions[number % len(self._sessions)].turns))
        while True:
            session = self._sessions[number % len(self._sessions)]
            for place, (turn, prompt, answer) in enumerate(grown(session, number, range(VOCABULARY), first)):
                await asyncio.sleep(turn.gap_s if place else 0.0)
                await self._ask(prompt, answer, f"{number}-{place}")
            number, first = number + users, 0

    async def _ask(self, prompt: SessionPrompt, answer: Int32Array, name: str) -> None:
        """One turn, which is counted after the warm-up."""
        loop = asyncio.get_running_loop()
        began, first_s, cached = loop.time(), 0.0, 0
        call = CallState(Request(self._options, DecodeOptions(method="none"), has_tools=True))
        if self._pools is None:
            outputs = generated(self._target, KeptPrompt.dense(prompt.token_ids), answer)
        else:
            self._pools.answers[name] = answer
            sampling = {"max_tokens": int(answer.size), "temperature": 1.0}
            outputs = self._dispatcher.run(name, Prompt(prompt, sampling, int(answer.size)), call)
        async for output in outputs:
            if not first_s:
                first_s, cached = loop.time() - began, output.cached_tokens
        if self._pools is not None:
            del self._pools.answers[name]
        kept, reason = prompt.size, ""
        for outcome in call.prompts:
            kept, reason = outcome.kept_tokens, f"{outcome.mode} {outcome.reason}"
        if began > WARM_UP_S:
            self._asked.append(Asked(first_s, prompt.size, cached, kept, reason))
        if len(self._asked) >= self._most:
            self._done.set()
