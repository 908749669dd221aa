"""How many replicas a pool needs, from the seconds of work that it has: the policy `work` of `autoscaling`.

Serve's own policy counts requests; but a request of 100 tokens and one of 100,000 are not the same, and what a request
costs each pool changes with the prompts and the keep rate. Here a request counts by its replica-seconds, as each
replica measures them (`actors.work_meter`), so both pools are sized in one unit, and the one that is short grows first
because its seconds pile up.

Inputs, means over `look_back_period_s`:

    queued   requests that wait for a replica                                      (Serve's handles)
    tokens   that the replicas' running requests read                              (sum over replicas)
    busy     share of its time that a replica worked                               (sum over replicas)
    s, s_t   replica-seconds per request and per token                             (mean over measured replicas)

    waiting = queued * s + tokens * s_t                   seconds of work that lie in the pool
    needed  = max(waiting / drain_s, busy / UTILISATION)  replicas

The first term is Little's law: by L = lambda * W, a request that finds `waiting` seconds of work before n replicas
waits waiting / n, which is to be `drain_s`. It sees a backlog at once, but says nothing of a pool that keeps up: a pool
sized by it alone drains, shrinks below what its load needs, and fills again. The second term is Little's law for the
requests in service (the utilisation law, U = lambda * s): fewer replicas than their busy shares sum up to could not
keep up. Running requests count whole, whatever is done of them: `waiting` errs upwards.

Against oscillation: a pool grows when it needs over GROW of what it has, and shrinks only to a size that it would fill
to SHRINK, and to the largest such size since it began to be too large: a moment's lull at the end of Serve's
`downscale_delay_s` decides nothing. Serve's delays, gains and bounds apply after that. No pool can wait less than its
requests take, so the objective is at least the cost of two requests. An idle pool needs 0 replicas; Serve's
`min_replicas` decides. From zero, any queued request starts the first replica: Serve sees to that itself, without
asking a policy.

State, in Serve's controller: the last known s and s_t, for a pool none of whose replicas has finished a request yet,
and the largest size that was enough while the pool has been too large.
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


class Load(NamedTuple):
    """What a pool has to do. requests: that run or wait. The other fields as in the module's text."""

    requests: float = 0.0
    queued: float = 0.0
    tokens: float = 0.0
    busy: float = 0.0
    seconds_per_request: float = 0.0
    seconds_per_token: float = 0.0

    @property
    def waiting_s(self) -> float:
        return self.queued * self.seconds_per_request + self.tokens * self.seconds_per_token


def replicas_for(load: Load, now: int, drain_s: float, *, grow: float = GROW, shrink: float = SHRINK) -> int:
    """How many replicas a pool that has or awaits `now` should have; 0 only for one with nothing to do."""
    if not load.requests and not load.busy and not load.tokens:
        return 0
    objective = max(drain_s, 2 * load.seconds_per_request)
    needed = max(load.waiting_s / objective, load.busy / UTILISATION)
    if needed > grow * now:
        return math.ceil(needed)
    return max(1, min(now, math.ceil(needed / shrink)))


class WorkPolicy:
    """Serve's policy class: made once per pool with its `policy_kwargs`, then called at each tick of the controller."""

    def __init__(self, drain_s: float) -> None:
        self.drain_s = drain_s

    def __call__(self, ctx: "AutoscalingContext") -> tuple[int, dict[str, float]]:
        """The number of replicas, and the state for the next call."""
        load = load_of(ctx)
        state = {"seconds_per_request": load.seconds_per_request, "seconds_per_token": load.seconds_per_token}
        if ctx.current_num_replicas == 0:  # all are starting: nothing is known that was not known when they were asked
            return ctx.target_num_replicas, state
        now = ctx.target_num_replicas
        wanted = self.decide(load, now)
        if wanted < now:
            enough = ctx.policy_state.get("enough", 0)
            wanted = max(wanted, enough if enough < now else 0)
            state["enough"] = wanted
        return wanted, state

    def decide(self, load: Load, now: int) -> int:
        return replicas_for(load, now, self.drain_s)


def load_of(ctx: "AutoscalingContext") -> Load:
    """The load as Serve reports it; costs that no replica has measured are the last known ones."""
    reported = ctx.aggregated_metrics or {}

    def total(name: str) -> float:
        return float(sum(reported.get(name, {}).values()))

    def cost(name: str) -> float:
        measured = reported.get(name, {}).values()
        return fmean(measured) if measured else float(ctx.policy_state.get(name, 0.0))

    return Load(
        requests=ctx.total_num_requests,
        queued=ctx.total_queued_requests or 0.0,
        tokens=total("tokens_in_flight"),
        busy=total("busy"),
        seconds_per_request=cost("seconds_per_request"),
        seconds_per_token=cost("seconds_per_token"),
    )
