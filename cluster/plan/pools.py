"""How a pool of equal replicas carries a load: its waits, its batch and the sessions that it holds. Pure.

Arrivals are Poisson, the router divides them evenly, and all prompts are alike: the times are means, not percentiles. A
replica that prefills and decodes gives its prefills the first right, so its decode steps take 1 / (1 - share of the
prefills) as long.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from cluster.plan.engine import Memory, PlannedEngine
from cluster.plan.formulas import mean_wait
from cluster.plan.gpus import Gpu
from cluster.plan.kept import kept_by_default
from skim_common.models.costs import Read
from target_service.drafting.acceptance import expected_tokens

MOST_BUSY = 0.8
"""The largest share of its time that a pool may work."""
MAX_ROWS = 256
"""vLLM's `max_num_seqs` on most GPUs: requests that one engine runs at a time."""


@dataclass(frozen=True, slots=True)
class PlannedLoad:
    """What the deployment must carry. qps: prompts per second. prompt, answer: tokens. keep_rate: of the prompt.

    by_default: it is what the default keeps, so that prompts of other lengths have other shares.

    slo_ttft, slo_tpot: the longest mean time to the first token, and the longest mean time per token of an answer, in
    seconds. acceptance: the probability that a draft is accepted if those before it are.
    """

    qps: float
    prompt: int
    answer: int
    slo_ttft: float
    slo_tpot: float
    keep_rate: float = 0.2
    acceptance: float = 0.7
    by_default: bool = False

    def kept(self, prompt: int) -> int:
        """The tokens that the target reads of a prompt of so many tokens."""
        return math.ceil(prompt * (kept_by_default(prompt) if self.by_default else self.keep_rate))


@dataclass(frozen=True, slots=True)
class Pool:
    """Replicas of one engine under a load. wait, service: mean seconds until a prompt starts, and of its prefill alone.

    busy: share of the time in which a replica works with first right (prefills; in a speculator also drafts). tpot:
    seconds per token; 0 in a speculator. rows: answers, or drafting sessions, that a replica has at a time.
    """

    ranks: int
    replicas: int
    wait: float
    service: float
    busy: float
    rows: float
    memory: Memory
    tpot: float = 0.0

    @property
    def gpus(self) -> int:
        return self.ranks * self.replicas

    @property
    def first(self) -> float:
        """Mean seconds until this pool has finished a prompt's prefill."""
        return self.wait + self.service


def target_pool(
    engine: PlannedEngine,
    gpu: Gpu,
    replicas: int,
    load: PlannedLoad,
    read: int,
    drafts: int = 0,
    drafting_s: float = 0.0,
) -> Pool | None:
    """A pool that prefills `read` tokens of each prompt and decodes the answers; None if it cannot carry the load.

    drafts: K of each verification. drafting_s: seconds that a step waits for its drafts.
    """
    rate = load.qps / replicas
    service = engine.read_s(Read(read))
    busy = rate * service
    memory = engine.memory(gpu, read + load.answer, rows=MAX_ROWS, drafts=drafts)
    if busy > MOST_BUSY or memory is None:
        return None
    per_step = expected_tokens(load.acceptance, drafts)

    def tpot(rows: float) -> float:
        step = engine.step_s(rows, read + load.answer / 2, 1 + drafts) + drafting_s
        return step / per_step / (1 - busy)

    rows = _rows(tpot, rate * load.answer, min(MAX_ROWS, memory.sessions))
    if rows is None:
        return None
    return Pool(engine.ranks, replicas, mean_wait(busy, service), service, busy, rows, memory, tpot(max(rows, 1.0)))


def _rows(tpot: Callable[[float], float], tokens_per_second: float, most: int) -> float | None:
    """The mean number of answers at a time, by Little's law: tokens per second * seconds per token; None above `most`.

    More answers make steps longer, in straight pieces that become steeper. So a secant from below meets the smallest
    solution in a few steps.
    """
    rows, before, wanted_before = 0.0, 0.0, 0.0
    for _ in range(50):
        wanted = tokens_per_second * tpot(max(rows, 1.0))
        if wanted > most:
            return None
        if abs(wanted - rows) < 1e-3 * wanted:
            return wanted
        slope = (wanted - wanted_before) / (rows - before) if rows > before else 0.0
        if slope >= 1:
            return None
        before, wanted_before, rows = rows, wanted, rows + (wanted - rows) / (1 - slope)
    return None


def draft_step_s(engine: PlannedEngine, load: PlannedLoad, rows: float) -> float:
    """Seconds of one draft for each of `rows` sessions of a speculator, over the kept prompts."""
    return engine.step_s(max(rows, 1.0), load.kept(load.prompt) + load.answer / 2)


def drafting_s(engine: PlannedEngine, load: PlannedLoad, drafts: int, rows: float) -> float:
    """Seconds that a target's step waits for `drafts` drafts: they are made one after the other, then cross."""
    return drafts * draft_step_s(engine, load, rows) + engine.machine.exchange_s if drafts else 0.0


def speculator_pool(
    engine: PlannedEngine, gpu: Gpu, replicas: int, load: PlannedLoad, target: Pool, drafts: int = 0
) -> Pool | None:
    """A pool that reads every prompt, and drafts for the answers of `target`; None if it cannot carry the load.

    The kept prompt is read for its drafts after the selection.
    """
    rate = load.qps / replicas
    service = engine.select_s(Read(load.prompt))
    session = engine.read_s(Read(load.kept(load.prompt))) if drafts else 0.0
    rows = target.rows * target.replicas / replicas if drafts else 0.0
    per_round = target.tpot * expected_tokens(load.acceptance, drafts)
    drafting = min(1.0, rows) * drafts * draft_step_s(engine, load, rows) / per_round
    busy = rate * (service + session) + drafting
    memory = engine.memory(gpu, load.prompt + load.answer, rows=MAX_ROWS, captures=True)
    if busy > MOST_BUSY or memory is None or max(rows, rate * service) > memory.sessions:
        return None
    return Pool(engine.ranks, replicas, mean_wait(busy, service), service, busy, rows, memory)
