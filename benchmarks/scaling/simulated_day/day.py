"""The traffic on one system, in ticks of virtual time: every request's first token, and the replicas over time.

Real: the router's decision (`decision.py`), the policies of autoscaling with Serve's delays and gains (`scaling.py`).
The engines take the time that the plan's cost model computes. Approximated:

- A pool reads one prompt at a time on each replica, in order of arrival, on the replica that is free first. Affinity
  may choose a busier one.
- If there are too many requests to simulate all, each one stands for several, which its replica reads one after the
  other. So waits are as many times longer at most; those of large pools are short.
- What depends on the whole pool changes once a tick: the waits that the router knows, the time per token, the reports
  for the autoscaler. Prefills go before decode steps, as in `cluster.plan.pools`; a decode step takes at most one
  prefill step longer. All answers are as long as those that began last.
- A prefix cache holds a prompt until as many tokens as it has room for were written after it. New replicas do not
  empty it.
- A request that waits for `max_wait_s` in one pool is refused. Admission sheds no load. Nothing is drafted.
- A stopping replica costs nothing from the decision on, and a starting one from then on.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.scaling.simulated_day.decision import Decider
from benchmarks.scaling.simulated_day.pool import ANSWER, NUMBER, READ, PoolPlan, SimulatedPool
from benchmarks.scaling.simulated_day.traffic import Traffic
from router.decision.cost_model import Mode, Reads
from skim_common.models.costs import Read

MODES: tuple[Mode | None, ...] = (None, "dense", "speculative")
WRITE_DECAY = 0.9
"""Weight of a tick's written tokens after the next one."""
DAMPING = 0.3
"""Weight of the latest tick's share of reading. A replica finds its balance of reads and answers within a tick; with a
weight of 1 a full pool would swing between them."""
LEARNED = 33
"""Prompts of a tick from which the router learns how many turns come later (`router.decision.later_turns`)."""
LATEST = 10
"""Prompts of a tick whose mean wait is the one that the router has measured."""

Prompt = tuple[int, int, int, bool, bool]
"""Tokens, known tokens, the index in MODES of the earlier turn, and whether target and speculator still have it."""
Cost = tuple[float, float, float, float, float]
"""Of the speculator: seconds, and tokens that it reads. Of the target: seconds of the prefill, tokens in all and to
read."""


@dataclass(frozen=True)
class System:
    """What serves the traffic. speculator: None for plain vLLM. keep_rate: of a selection. skim_s: seconds of a
    speculative request besides both engines. max_wait_s: a longer wait is refused. start_s: of a replica. always: every
    prompt is selected, whatever the router would decide. tick_s: see the module.
    """

    target: PoolPlan
    speculator: PoolPlan | None = None
    keep_rate: float = 0.2
    skim_s: float = 0.0
    min_prompt_tokens: int = 2000
    max_wait_s: float = 60.0
    start_s: float = 120.0
    always: bool = False
    tick_s: float = 10.0


@dataclass
class Day:
    """What became of the requests. first: seconds to the first token, float64 [N]; infinite if refused. tpot: seconds
    per token of the answer, float64 [N]. mode: an index of MODES, int8 [N]. gpu_hours, replicas: by pool, within the
    time of the traffic; replicas at the end of each tick.
    """

    first: np.ndarray
    tpot: np.ndarray
    mode: np.ndarray
    gpu_hours: dict[str, float]
    replicas: dict[str, list[int]]


def simulate(traffic: Traffic, system: System) -> Day:
    """Serve the traffic to its last request."""
    return _Run(traffic, system).run()


class _Run:
    def __init__(self, traffic: Traffic, system: System) -> None:
        self.traffic, self.system, self.now = traffic, system, 0.0
        self.first, self.tpot = np.full(traffic.at.size, np.inf), np.zeros(traffic.at.size)
        self.modes = [0] * traffic.at.size
        args = system.start_s, system.tick_s, 1 / traffic.share
        self.target = SimulatedPool(system.target, *args)
        self.speculator = SimulatedPool(system.speculator, *args) if system.speculator else None
        self.pools = {"target": self.target} | ({"speculator": self.speculator} if self.speculator else {})
        self.decider: Decider | None = None
        if system.speculator:
            self.decider = Decider(
                system.target.engine, system.speculator.engine, system.keep_rate, system.skim_s,
                system.min_prompt_tokens, lambda: self.now, always=system.always,
            )  # fmt: skip
        self.coming = np.empty((5, 0))  # to the target: when, seconds of the prefill, tokens in all and to read, index
        self.reading = 0.0  # the share of the time in which the mean target reads
        self.context = 0.0  # tokens of the latest answers
        self.written = dict.fromkeys(self.pools, 0.0)  # tokens per second
        self.costs: dict[Prompt, tuple[Reads, Cost, Cost]] = {}
        self.chunk_s = system.target.engine.read_s(Read(system.target.engine.chunk))

    def run(self) -> Day:
        tick_s, begin = self.system.tick_s, 0
        replicas: dict[str, list[int]] = {name: [] for name in self.pools}
        while self.now < self.traffic.seconds or self.coming.size or self.target.has.size:
            end = int(np.searchsorted(self.traffic.at, self.now + tick_s))
            self._arrive(begin, end)
            self.now += tick_s
            self._prefill()
            self.reading += DAMPING * (self.target.reading(self.now) - self.reading)
            queued = int((self.coming[0] <= self.now).sum())
            for name, pool in self.pools.items():
                ended, ends = pool.tick(self.now, queued if name == "target" else 0)
                if name == "target":
                    steps = np.maximum(ended[ANSWER] - 1, 1)
                    self.tpot[ended[NUMBER].astype(int)] = (ends - ended[READ]) / steps
                if self.now < self.traffic.seconds + tick_s:
                    replicas[name].append(pool.replicas)
            begin = end
        hours = {name: sum(replicas[name]) * pool.plan.gpus * tick_s / 3600 for name, pool in self.pools.items()}
        return Day(self.first, self.tpot, np.array(self.modes, np.int8), hours, replicas)

    def _arrive(self, begin: int, end: int) -> None:
        """The requests of this tick are decided, and those that are selected go to the speculator."""
        if begin == end:
            return
        traffic, here = self.traffic, slice(begin, end)
        held = {name: traffic.pause[here] < self._held_s(name) for name in self.pools}
        in_target, in_speculator = held["target"], held.get("speculator", held["target"])
        rows = zip(
            range(begin, end), *(column[here].tolist() for column in (traffic.prompt, traffic.known, traffic.before)),
            in_target.tolist(), in_speculator.tolist(), strict=True,
        )  # fmt: skip
        decided: dict[Prompt, tuple[int, Cost]] = {}
        costs: list[Cost] = []
        for index, prompt, known, before, of_target, of_speculator in rows:
            key = prompt, known, self.modes[before] if before >= 0 else 0, of_target, of_speculator
            found = decided.get(key)
            if found is None:
                found = decided[key] = self._decide(key)
            self.modes[index] = found[0]
            costs.append(found[1])
            if self.decider and end - index <= LEARNED:
                self.decider.turns.began(prompt, known if of_target else 0)
        at = traffic.at[here]
        select_s, selected, prefill_s, tokens, computed = np.array(costs).T
        ready = at.copy()
        if self.speculator and self.decider:
            asked = np.array(self.modes[begin:end]) == MODES.index("speculative")
            begins = self.speculator.read(at[asked], select_s[asked], self.system.max_wait_s)
            read = begins + select_s[asked]
            prompts, taken = traffic.prompt[here][asked], np.isfinite(begins)
            no = np.zeros(begins.size)
            self.speculator.take(np.stack([at[asked], begins, read, no, prompts, no, no])[:, taken])
            self._wrote("speculator", float(selected[asked][taken].sum()))
            if taken.any():
                self.decider.speculator.waited(float((begins - at[asked])[taken][-LATEST:].mean()))
            ready[asked] = read + self.system.skim_s
        coming = np.stack([ready, prefill_s, tokens, computed, np.arange(begin, end)])[:, np.isfinite(ready)]
        self.coming = np.concatenate([self.coming, coming], axis=1)

    def _decide(self, key: Prompt) -> tuple[int, Cost]:
        """The mode of a prompt, as an index of MODES, and what it costs in that mode."""
        if key not in self.costs:
            self.costs[key] = self._cost(key)
        reads, dense, speculative = self.costs[key]
        if self.decider is None:
            return MODES.index("dense"), dense
        prompt, _, before, in_target, in_speculator = key
        mode = self.decider.mode(prompt, reads, MODES[before] if in_target or in_speculator else None)
        return MODES.index(mode), dense if mode == "dense" else speculative

    def _cost(self, key: Prompt) -> tuple[Reads, Cost, Cost]:
        prompt, known, before, in_target, in_speculator = key
        was_dense, was_selected = MODES[before] == "dense", MODES[before] == "speculative"
        dense = known if was_dense and in_target else 0
        engine = self.system.target.engine
        if self.decider is None:
            read = Read.of(prompt, dense)
            cost = (0.0, 0.0, engine.read_s(read), float(prompt), float(read.tokens))
            return Reads(read, read, read, read), cost, cost
        reads = self.decider.reads(
            prompt, dense, known if was_selected and in_speculator else 0, known if was_selected and in_target else 0
        )
        speculator, kept = self.decider.speculator, reads.kept
        alone = (0.0, 0.0, engine.read_s(reads.dense), float(prompt), float(reads.dense.tokens))
        select_s, size = speculator.estimate(reads.read) / 1e3 - self.system.skim_s, float(kept.cached + kept.tokens)
        selected = (select_s, float(reads.read.tokens), engine.read_s(kept), size, float(kept.tokens))
        return reads, alone, selected

    def _prefill(self) -> None:
        """The target reads what has come until the end of this tick, as far as it can, and decodes."""
        target, traffic = self.target, self.traffic
        due = np.flatnonzero(self.coming[0] <= self.now)
        due = due[np.argsort(self.coming[0, due], kind="stable")]
        ready, seconds, tokens, computed, numbers = self.coming[:, due]
        answer = traffic.answer[numbers.astype(int)].astype(float)
        target.step_s = self._step_s(float((tokens + answer / 2).mean()) if due.size else 0.0)
        requests = np.stack([ready, ready, ready, ready, tokens, answer, numbers])
        begins = target.answer(requests, seconds, self.now, self.system.max_wait_s)
        begun = np.isfinite(begins)
        target.take(requests[:, begun])
        index = numbers[begun].astype(int)
        self.first[index] = requests[READ, begun] - traffic.at[index]
        self._wrote("target", float((computed + answer)[begun].sum()))
        if self.decider and begun.any():
            self.decider.target.waited(float((begins - ready)[begun][-LATEST:].mean()))
        self.coming = np.delete(self.coming, due[~np.isnan(begins)], axis=1)

    def _step_s(self, context: float) -> float:
        """Seconds of a decode step of the target in this tick, as in `cluster.plan.pools`, by its latest ticks.

        context: tokens of an answer that begins now; 0 if none does.
        """
        self.context = context or self.context
        step = self.system.target.engine.step_s(max(1.0, self.target.rows / self.target.replicas), self.context)
        left = 1 - self.reading
        return min(step / left, self.chunk_s + step) if left > 0 else self.chunk_s + step

    def _held_s(self, name: str) -> float:
        """How long a pool's caches hold what was written."""
        written = self.written[name]
        return self.pools[name].cache_tokens / written if written else np.inf

    def _wrote(self, name: str, tokens: float) -> None:
        self.written[name] += (1 - WRITE_DECAY) * (
            tokens / self.traffic.share / self.system.tick_s - self.written[name]
        )
