"""The smallest deployment that keeps the SLOs: plain vLLM, Skim, and plain vLLM on the GPUs that Skim needs. Pure."""

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from cluster.plan.engine import Model, PlannedEngine
from cluster.plan.formulas import best_drafts
from cluster.plan.gpus import Gpu, Machine
from cluster.plan.pools import (
    MOST_BUSY,
    PlannedLoad,
    Pool,
    draft_step_s,
    drafting_s,
    speculator_pool,
    target_pool,
)
from skim_common.models.costs import Read

RANKS = (1, 2, 4, 8)
"""Tensor-parallel sizes that are tried: one machine's."""
MOST_GPUS = 1024
LONGEST = 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """A deployment. speculator: None for plain vLLM. drafts: K. first: mean seconds to the first token."""

    target: Pool
    speculator: Pool | None
    drafts: int
    first: float

    @property
    def gpus(self) -> int:
        return self.target.gpus + (self.speculator.gpus if self.speculator else 0)

    def keeps(self, load: PlannedLoad) -> bool:
        return self.first <= load.slo_ttft and self.target.tpot <= load.slo_tpot


@dataclass(frozen=True, slots=True)
class Sizer:
    """The two models on one kind of GPU. weight_bits, kv_bits: of both models.

    windows: the speculator reads prompts in windows, as one with a head profile does. again: as `PlannedEngine.again`.
    """

    target: Model
    speculator: Model
    gpu: Gpu
    machine: Machine
    weight_bits: float = 16
    kv_bits: float = 16
    windows: bool = True
    again: bool = True

    def plain(self, load: PlannedLoad) -> Plan | None:
        """Plain vLLM on the fewest GPUs; None if no size up to MOST_GPUS keeps the SLOs."""
        plans = (self._smallest_plain(engine, load) for engine in self._engines(self.target))
        return _best([plan for plan in plans if plan])

    def plain_on(self, gpus: int, load: PlannedLoad) -> Plan | None:
        """Plain vLLM on at most `gpus` GPUs, whether or not it keeps the SLOs; None if it cannot carry the load.

        The tensor-parallel size with the soonest first token among those that keep the SLOs, else among all.
        """
        plans = [
            plan
            for engine in self._engines(self.target)
            if gpus >= engine.ranks and (plan := self._plain(engine, gpus // engine.ranks, load))
        ]
        kept = [plan for plan in plans if plan.keeps(load)]
        return min(kept or plans, key=lambda plan: plan.first, default=None)

    def skim(self, load: PlannedLoad, drafts: int | None = None) -> Plan | None:
        """Skim on the fewest GPUs; None if no size up to MOST_GPUS keeps the SLOs.

        drafts: K; None tries the best K of a single answer, and none.
        """
        found: list[Plan] = []
        for target in self._engines(self.target):
            for speculator in self._engines(self.speculator):
                if speculator.ranks > target.ranks:
                    continue
                best = self.best_drafts(target, speculator, load) if drafts is None else drafts
                for count in {best, 0} if drafts is None else {best}:
                    fewest = min((plan.gpus for plan in found), default=MOST_GPUS)
                    found += self._smallest_skim(target, speculator, load, count, fewest)
        return _best(found)

    def best_drafts(self, target: PlannedEngine, speculator: PlannedEngine, load: PlannedLoad) -> int:
        """K for a single answer, from the acceptance and the times of both engines."""
        step = target.step_s(1, self.kept(load))
        draft = draft_step_s(speculator, load, 1)
        return best_drafts(load.acceptance, draft / step, exchange=target.machine.exchange_s / step)

    def first_alone(
        self, load: PlannedLoad, prompt: int, target_ranks: int, speculator_ranks: int, plain_ranks: int
    ) -> tuple[float, float]:
        """Seconds to the first token of a single prompt without other load: with plain vLLM, and with Skim."""
        dense, target = (self.engine(self.target, ranks) for ranks in (plain_ranks, target_ranks))
        speculator = self.engine(self.speculator, speculator_ranks)
        select = speculator.select_s(Read(prompt))
        kept = target.read_s(Read(load.kept(prompt)))
        return dense.read_s(Read(prompt)), self.machine.skim_s + select + kept

    def pays_from(self, load: PlannedLoad, plan: Plan, plain: Plan) -> int | None:
        """The prompt length from which a single prompt's first token is sooner with Skim; None if at no length."""
        ranks = plan.target.ranks, plan.speculator.ranks if plan.speculator else 1, plain.target.ranks

        def pays(prompt: int) -> bool:
            plain_s, skim_s = self.first_alone(load, prompt, *ranks)
            return skim_s < plain_s

        if not pays(LONGEST):
            return None
        low, high = 1, LONGEST
        while high - low > max(16, low // 64):
            middle = (low + high) // 2
            low, high = (low, middle) if pays(middle) else (middle, high)
        return high

    def _engines(self, model: Model) -> Iterator[PlannedEngine]:
        for ranks in RANKS:
            if model.heads % ranks == 0:
                yield self.engine(model, ranks)

    def engine(self, model: Model, ranks: int) -> PlannedEngine:
        windows = self.windows and model is self.speculator
        return PlannedEngine(
            model, self.machine, ranks, self.weight_bits, self.kv_bits, windows=windows, again=self.again
        )

    def kept(self, load: PlannedLoad) -> int:
        """The tokens that the target reads of a prompt."""
        return load.kept(load.prompt)

    def _plain(self, engine: PlannedEngine, replicas: int, load: PlannedLoad) -> Plan | None:
        pool = target_pool(engine, self.gpu, replicas, load, load.prompt)
        return Plan(pool, None, 0, pool.first) if pool else None

    def _smallest_plain(self, engine: PlannedEngine, load: PlannedLoad) -> Plan | None:
        prefill = engine.read_s(Read(load.prompt))
        if prefill > load.slo_ttft:
            return None
        for replicas in range(_least(load.qps, prefill), MOST_GPUS // engine.ranks + 1):
            plan = self._plain(engine, replicas, load)
            if plan and plan.keeps(load):
                return plan
        return None

    def _smallest_skim(
        self, target: PlannedEngine, speculator: PlannedEngine, load: PlannedLoad, drafts: int, fewest: int
    ) -> Iterator[Plan]:
        """Plans with at most `fewest` GPUs, each smaller than the one before."""
        kept = self.kept(load)
        reading = speculator.select_s(Read(load.prompt))
        prefill = target.read_s(Read(kept))
        if self.machine.skim_s + reading + prefill > load.slo_ttft:
            return
        least = _least(load.qps, reading)
        replicas = _least(load.qps, prefill)
        while (left := (fewest - replicas * target.ranks) // speculator.ranks) >= least:
            counts = range(least, left + 1)
            at = bisect_left(counts, True, key=lambda m: self._keeps(target, replicas, speculator, m, load, drafts))
            if at < len(counts) and (plan := self.skim_of(target, replicas, speculator, counts[at], load, drafts)):
                fewest = plan.gpus - 1
                yield plan
            replicas += 1

    def _keeps(
        self,
        target: PlannedEngine,
        replicas: int,
        speculator: PlannedEngine,
        speculators: int,
        load: PlannedLoad,
        drafts: int,
    ) -> bool:
        plan = self.skim_of(target, replicas, speculator, speculators, load, drafts)
        return plan is not None and plan.keeps(load)

    def skim_of(
        self,
        target: PlannedEngine,
        replicas: int,
        speculator: PlannedEngine,
        speculators: int,
        load: PlannedLoad,
        drafts: int,
    ) -> Plan | None:
        """Skim with these pools, whether or not it keeps the SLOs; None if it cannot carry the load."""
        rows = 0.0
        decoding = None
        for _ in range(4):  # how long drafts take depends on the number of answers, and the reverse
            waits = drafting_s(speculator, load, drafts, rows)
            decoding = target_pool(target, self.gpu, replicas, load, self.kept(load), drafts, waits)
            if decoding is None:
                return None
            rows = decoding.rows * replicas / speculators
        assert decoding is not None
        reading = speculator_pool(speculator, self.gpu, speculators, load, decoding, drafts)
        if reading is None:
            return None
        return Plan(decoding, reading, drafts, self.machine.skim_s + reading.first + decoding.first)


def _least(qps: float, service: float) -> int:
    """The fewest replicas that can keep up."""
    return max(1, math.ceil(qps * service / MOST_BUSY))


def _best(plans: list[Plan]) -> Plan | None:
    """The fewest GPUs; of equal ones the shortest time for a whole answer of 100 tokens."""
    return min(plans, key=lambda plan: (plan.gpus, plan.first + 100 * plan.target.tpot), default=None)
