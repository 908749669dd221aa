"""The autoscaling policy `work` (docs/scaling.md): the number of replicas from the seconds of work that a pool has.

    waiting = queued * s + tokens * s_t                   seconds of work in the pool
    needed  = max(waiting / drain_s, busy / UTILISATION)  replicas

Means over `look_back_period_s`: queued requests (of Serve's handles), prompt tokens of the running requests and shares
of busy time (sums over the replicas), replica-seconds per request and per token (means over those that have measured
them, `actors.work_meter`). `waiting` is near 0 in a pool that keeps up, which would shrink below its load and fill
again. So the second term is needed. A pool grows above GROW times its replicas. It shrinks only to a size that its
load fills to at most SHRINK, and to the largest such size since it became too large. Serve's delays, gains and bounds
apply afterwards.

The state in Serve's controller: the last known s and s_t, for pools whose replicas have not finished a request yet, and
the largest size that was enough since the pool became too large.
Serve pickles this module by value into its controller, so it imports nothing of Skim.
"""

import math
from statistics import fmean
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

UTILISATION = 0.8
GROW = 1.1
SHRINK = 0.75


class ReportedLoad(NamedTuple):
    """The load of a pool. requests: running and queued. The module's docstring explains the other fields."""

    requests: float = 0.0
    queued: float = 0.0
    tokens: float = 0.0
    busy: float = 0.0
    seconds_per_request: float = 0.0
    seconds_per_token: float = 0.0

    @property
    def waiting_s(self) -> float:
        return self.queued * self.seconds_per_request + self.tokens * self.seconds_per_token


def replicas_for(load: ReportedLoad, now: int, drain_s: float, *, grow: float = GROW, shrink: float = SHRINK) -> int:
    """The number of replicas for `load`; 0 only without any load. now: replicas that run or start."""
    if not load.requests and not load.busy and not load.tokens:
        return 0
    objective = max(drain_s, 2 * load.seconds_per_request)
    needed = max(load.waiting_s / objective, load.busy / UTILISATION)
    if needed > grow * now:
        return math.ceil(needed)
    return max(1, min(now, math.ceil(needed / shrink)))


class WorkPolicy:
    """The policy class: Serve creates one per pool with `policy_kwargs` and calls it at each tick of its controller."""

    def __init__(self, drain_s: float) -> None:
        self.drain_s = drain_s

    def __call__(self, ctx: "AutoscalingContext") -> tuple[int, dict[str, float]]:
        """The number of replicas, and the state for the next call."""
        load = reported_load(ctx)
        state = {"seconds_per_request": load.seconds_per_request, "seconds_per_token": load.seconds_per_token}
        if ctx.current_num_replicas == 0:  # all replicas are starting: there is no new information
            return ctx.target_num_replicas, state
        now = ctx.target_num_replicas
        wanted = self.decide(load, now)
        if wanted < now:
            enough = ctx.policy_state.get("enough", 0)
            wanted = max(wanted, enough if enough < now else 0)
            state["enough"] = wanted
        return wanted, state

    def decide(self, load: ReportedLoad, now: int) -> int:
        return replicas_for(load, now, self.drain_s)


def reported_load(ctx: "AutoscalingContext") -> ReportedLoad:
    """The load that Serve reports. Costs that no replica has measured yet are the last known ones."""
    reported = ctx.aggregated_metrics or {}

    def total(name: str) -> float:
        return float(sum(reported.get(name, {}).values()))

    def cost(name: str) -> float:
        measured = reported.get(name, {}).values()
        return fmean(measured) if measured else float(ctx.policy_state.get(name, 0.0))

    return ReportedLoad(
        requests=ctx.total_num_requests,
        queued=ctx.total_queued_requests or 0.0,
        tokens=total("tokens_in_flight"),
        busy=total("busy"),
        seconds_per_request=cost("seconds_per_request"),
        seconds_per_token=cost("seconds_per_token"),
    )
