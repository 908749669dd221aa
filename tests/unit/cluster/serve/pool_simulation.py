"""Simulates two pools in series in discrete time, with the real meter, the real policy and Serve's delay logic.

A replica reads one prompt after the other. It is ready `STARTUP_S` after the pool has requested it, and finishes its
requests before it stops. A request ends with the first token of the target, so its duration is its time to first token.
"""

from collections import deque
from contextlib import ExitStack
from types import SimpleNamespace

import numpy as np
from ray.serve import autoscaling_policy
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from actors.work_meter import WorkMeter

STEP_S = 0.1
STARTUP_S = 20.0
PROMPT_TOKENS = 4000


class Request:
    def __init__(self, arrived):
        self.arrived, self.answered = arrived, None


class Replica:
    def __init__(self, name, ready_at, clock):
        self.name, self.ready_at, self.leaves = name, ready_at, False
        self.meter = WorkMeter(clock=clock)
        self.requests = deque()  # (request, the meter's context to close at its end)
        self.left_s = 0.0  # work left of the first request

    def take(self, request, tokens, seconds):
        stack = ExitStack()
        stack.enter_context(self.meter.request(tokens))
        if not self.requests:
            self.left_s = seconds
        self.requests.append((request, stack))

    def work(self, seconds_per_request):
        """Simulate one step; the requests that it finished."""
        time, done = STEP_S, []
        while self.requests and time > 1e-9:
            spent = min(time, self.left_s)
            time, self.left_s = time - spent, self.left_s - spent
            if self.left_s <= 1e-9:
                request, stack = self.requests.popleft()
                stack.close()
                done.append(request)
                self.left_s = seconds_per_request
        return done


class SimulatedPool:
    """options: of Serve's AutoscalingConfig. policy: replaces the one in the options."""

    def __init__(self, name, clock, options, policy=None, max_ongoing=8):
        self.name, self.clock, self.max_ongoing = name, clock, max_ongoing
        self.config = AutoscalingConfig(**options)
        chosen = policy or _resolve_policy_callable(self.config.policy)
        self.policy = autoscaling_policy._apply_autoscaling_config(chosen)
        self.target, self.state, self.made = self.config.initial_replicas or self.config.min_replicas, {}, 0
        self.replicas, self.queue = [], deque()
        self.samples = deque(maxlen=max(1, int(self.config.look_back_period_s)))
        self.history = []  # target number of replicas, one entry per second
        self._resize(ready_at=0.0)

    @property
    def running(self):
        return [replica for replica in self.replicas if replica.ready_at <= self.clock() and not replica.leaves]

    def step(self, tokens, seconds):
        for replica in sorted(self.running, key=lambda replica: len(replica.requests)):
            while self.queue and len(replica.requests) < self.max_ongoing:
                fewest = min(self.running, key=lambda replica: len(replica.requests))
                if len(fewest.requests) >= self.max_ongoing:
                    break
                fewest.take(self.queue.popleft(), tokens, seconds)
        done = [request for replica in self.replicas for request in replica.work(seconds)]
        self.replicas = [replica for replica in self.replicas if replica.requests or not replica.leaves]
        return done

    def scale(self):
        """Called once a second: take the samples that Serve takes, and do what its controller does."""
        running = self.running
        ongoing = sum(len(replica.requests) for replica in self.replicas)
        reports = {replica.name: replica.meter.stats() for replica in running}
        self.samples.append((ongoing + len(self.queue), len(self.queue), reports))
        wanted, self.state = self.policy(self._context(running))
        wanted = max(self.config.min_replicas, min(self.config.max_replicas, int(np.ceil(wanted))))
        if wanted != self.target:
            self.target = wanted
            self._resize(ready_at=self.clock() + STARTUP_S)
        self.history.append(self.target)

    def _resize(self, ready_at):
        staying = [replica for replica in self.replicas if not replica.leaves]
        for replica in sorted(staying, key=lambda replica: -replica.ready_at)[: max(0, len(staying) - self.target)]:
            replica.leaves = True
        for _ in range(self.target - len(staying)):
            self.made += 1
            self.replicas.append(Replica(f"{self.name}{self.made}", ready_at, self.clock))

    def _context(self, running):
        metrics = {}
        for replica in running:
            reports = [sample[2][replica.name] for sample in self.samples if replica.name in sample[2]]
            for name in {name for report in reports for name in report}:
                told = [report[name] for report in reports if name in report]
                metrics.setdefault(name, {})[replica.name] = float(np.mean(told))
        return AutoscalingContext(
            deployment_id=None,
            deployment_name=self.name,
            app_name=None,
            current_num_replicas=len(running),
            target_num_replicas=self.target,
            running_replicas=[replica.name for replica in running],
            total_num_requests=float(np.mean([sample[0] for sample in self.samples])),
            total_queued_requests=float(np.mean([sample[1] for sample in self.samples])),
            aggregated_metrics=metrics,
            raw_metrics=None,
            capacity_adjusted_min_replicas=self.config.min_replicas,
            capacity_adjusted_max_replicas=self.config.max_replicas,
            policy_state=dict(self.state),
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=self.clock(),
            config=self.config,
        )


class Simulation:
    """pools: (options, policy or None) by name. rate, keep_rate: functions of the time in seconds."""

    def __init__(self, monkeypatch, pools, *, seconds_per_token, rate, keep_rate=lambda _: 0.1, seed=0):
        self.now = 0.0
        monkeypatch.setattr(autoscaling_policy, "time", SimpleNamespace(time=lambda: self.now))
        self.pools = {name: SimulatedPool(name, lambda: self.now, *given) for name, given in pools.items()}
        self.cost, self.rate, self.keep_rate = seconds_per_token, rate, keep_rate
        self.random, self.requests = np.random.default_rng(seed), []

    def run(self, seconds):
        speculator, target = self.pools["speculator"], self.pools["target"]
        for tick in range(1, round(seconds / STEP_S) + 1):
            for _ in range(self.random.poisson(self.rate(self.now) * STEP_S)):
                self.requests.append(Request(self.now))
                speculator.queue.append(self.requests[-1])
            kept = int(PROMPT_TOKENS * self.keep_rate(self.now))
            self.now = tick * STEP_S
            target.queue.extend(speculator.step(PROMPT_TOKENS, PROMPT_TOKENS * self.cost["speculator"]))
            for request in target.step(kept, kept * self.cost["target"]):
                request.answered = self.now
            if tick % round(1 / STEP_S) == 0:
                for pool in self.pools.values():
                    pool.scale()
        return self

    def ttft(self, begin, end):
        """90th percentile for requests that arrived in [begin, end); infinite if over a tenth of them has no answer."""
        waits = [
            (request.answered or np.inf) - request.arrived
            for request in self.requests
            if begin <= request.arrived < end
        ]
        return float(np.percentile(waits, 90, method="higher"))

    def reversals(self, pool, begin):
        """How often the pool changed between growing and shrinking after `begin`."""
        moves = np.diff(self.pools[pool].history[int(begin) :])
        signs = np.sign(moves[moves != 0])
        return int((signs[1:] != signs[:-1]).sum())

    def first_growth(self, pool, begin):
        """Seconds after `begin` until the pool asks for more replicas; infinite if never."""
        history = np.array(self.pools[pool].history[int(begin) :])
        grown = np.flatnonzero(history > history[0])
        return float(grown[0]) if grown.size else float("inf")
