"""The policy `work`: its maths, and the sizes of two simulated pools after a step of the load or the keep rate."""

import pytest
from ray.serve.config import AutoscalingConfig

from actors.work_meter import WorkMeter
from cluster.config.pools import AutoscalingConfig as PoolScaling
from cluster.serve.app import scaling_options
from cluster.serve.autoscaling import ReportedLoad, WorkPolicy, replicas_for, reported_load
from tests.unit.cluster.serve.pool_simulation import Simulation

DRAIN_S = 4.0
COST = {"speculator": 1.0 / 4000, "target": 0.5 / 400}  # 1 s and 0.5 s per request at a keep rate of 0.1
OBJECTIVE_S = 2 * DRAIN_S  # a request may wait DRAIN_S in each of the two pools
STEP_AT = 150.0


def scaling(**changes):
    delays = {"upscale_delay_s": 5, "downscale_delay_s": 60, "look_back_period_s": 15}
    pool = PoolScaling(**{"policy": "work", "drain_s": DRAIN_S, "max_replicas": 16, **delays, **changes})
    return scaling_options(pool, max(1, pool.min_replicas))


def simulate(monkeypatch, options, policy=lambda: None, seconds=600, **load):
    pools = {name: (options, policy()) for name in ("speculator", "target")}
    return Simulation(monkeypatch, pools, seconds_per_token=COST, **load).run(seconds)


def load_step(time):
    return 0.3 if time < STEP_AT else 3.0


def keeps_its_promise(run):
    """The two requirements on a policy after a load step."""
    return {
        "in time": run.ttft(450, 580) <= OBJECTIVE_S,
        "calm": all(run.reversals(pool, STEP_AT) <= 1 for pool in run.pools),
    }


class Jumpy(WorkPolicy):
    """The policy without hysteresis and without the utilisation term."""

    def decide(self, load, now):
        return replicas_for(load._replace(busy=0.0), now, self.drain_s, grow=1.0, shrink=1.0)


@pytest.mark.parametrize(
    ("load", "now", "wanted"),
    [
        (ReportedLoad(), 3, 0),  # idle
        (ReportedLoad(requests=4, queued=4), 0, 1),  # no cost has been measured yet
        (ReportedLoad(requests=10, queued=10, seconds_per_request=1.0), 1, 2),  # 10 s of work, 5 s per replica
        (ReportedLoad(requests=9, tokens=9000, seconds_per_token=0.002, seconds_per_request=2.0), 1, 4),  # 18 s of work
        (ReportedLoad(requests=1, queued=1, seconds_per_request=50.0), 1, 1),  # one request cannot be shared
        (ReportedLoad(requests=4, queued=4, seconds_per_request=50.0), 1, 2),  # a wait cannot be shorter than a request
        (ReportedLoad(requests=3, busy=3.0), 3, 4),  # no backlog, but no spare capacity
        (ReportedLoad(requests=3, busy=2.4), 3, 3),
        (ReportedLoad(requests=3, busy=2.6), 3, 3),  # less than GROW times 3
        (ReportedLoad(requests=3, busy=1.9), 4, 4),  # the load would fill 3 replicas to more than SHRINK
        (ReportedLoad(requests=3, busy=1.7), 4, 3),
        (ReportedLoad(requests=1, busy=0.01), 9, 1),  # the last replica stops only when idle
    ],
)
def test_how_many_replicas(load, now, wanted):
    assert replicas_for(load, now, drain_s=5.0) == wanted


@pytest.mark.parametrize("busy", [0.3, 0.9, 1.7, 2.2, 3.9, 7.6])
@pytest.mark.parametrize("now", range(1, 12))
def test_what_it_chooses_it_stays_with(busy, now):
    """One step leads to a size that the same load does not change."""
    chosen = replicas_for(ReportedLoad(1, busy=busy), now, 5.0)
    assert replicas_for(ReportedLoad(1, busy=busy), chosen, 5.0) == chosen


def test_serve_makes_the_policy_of_the_config():
    """Serve imports the policy by its path and pickles it into its controller; class and arguments must survive."""
    config = AutoscalingConfig(**scaling())
    policy = config.policy.get_policy()(**config.policy.policy_kwargs)
    assert type(policy).__name__ == "WorkPolicy"
    assert policy.drain_s == DRAIN_S
    assert config.policy.policy_function == "cluster.serve.autoscaling:WorkPolicy"
    assert AutoscalingConfig(**scaling(policy="requests")).policy.is_default_policy_function()


def context(reports, **fields):
    class Context:
        aggregated_metrics = reports
        total_num_requests, total_queued_requests = 2.0, 1.0
        current_num_replicas, target_num_replicas, policy_state = 2, 2, {}

    for name, value in fields.items():
        setattr(Context, name, value)
    return Context()


def test_the_load_as_serve_reports_it():
    """A replica without finished requests reports no costs. If none reports any, the last known costs are used."""
    meter = WorkMeter(clock=iter([0.0, 0.0, 2.0, 2.0, 2.0]).__next__)
    with meter.request(1000):
        pass
    idle = WorkMeter(clock=lambda: 0.0).stats()
    reports = {
        name: {"old": value} | ({"new": idle[name]} if name in idle else {}) for name, value in meter.stats().items()
    }
    load = reported_load(context(reports))
    assert load == ReportedLoad(2.0, 1.0, 0.0, 1.0, 2.0, 0.002)
    _, state = WorkPolicy(5.0)(context(reports))
    unknown = {name: {"new": value} for name, value in idle.items()}
    assert reported_load(context(unknown, policy_state=state)).seconds_per_request == 2.0
    assert reported_load(context(None)).seconds_per_request == 0.0


def test_a_pool_shrinks_to_the_most_that_it_needed_meanwhile():
    """A short lull at the end of Serve's delay has no effect."""
    policy, state, wanted = WorkPolicy(5.0), {}, []
    for busy in (2.5, 3.2, 0.2, 7.0, 0.9):
        reports = {"busy": {"one": busy}}
        size, state = policy(context(reports, current_num_replicas=8, target_num_replicas=8, policy_state=state))
        wanted.append(size)
    assert wanted == [5, 6, 6, 8, 2]


def test_a_pool_whose_replicas_are_all_starting_is_left_alone():
    assert WorkPolicy(5.0)(context({}, current_num_replicas=0, target_num_replicas=3))[0] == 3


@pytest.mark.parametrize("seed", range(3))
def test_after_a_load_step_the_short_pool_grows_first_and_all_is_calm_and_in_time(monkeypatch, seed):
    run = simulate(monkeypatch, scaling(), rate=load_step, seed=seed)
    assert run.ttft(STEP_AT, STEP_AT + 60) > OBJECTIVE_S  # the first replicas were too few
    assert run.first_growth("speculator", STEP_AT) < run.first_growth("target", STEP_AT)
    assert keeps_its_promise(run) == {"in time": True, "calm": True}
    # The sizes follow the costs of a request, 2 to 1, and at most half of the capacity is idle.
    sizes = {name: pool.target for name, pool in run.pools.items()}
    assert 4 <= sizes["speculator"] <= 6
    assert 2 <= sizes["target"] <= 3


@pytest.mark.parametrize("at_once", [1, 2, 4, 8])
def test_request_counts_do_not_keep_that_promise(monkeypatch, at_once):
    """With one request per replica, answers are in time but the sizes swing; with more, neither holds."""
    run = simulate(monkeypatch, scaling(policy="requests", target_ongoing_requests=at_once), rate=load_step)
    assert keeps_its_promise(run) == {"in time": at_once == 1, "calm": False}


def test_nor_does_the_backlog_without_hysteresis(monkeypatch):
    """Serve's delays alone make the policy slow and do not prevent oscillation."""
    run = simulate(monkeypatch, scaling(), policy=lambda: Jumpy(DRAIN_S), rate=load_step)
    assert keeps_its_promise(run) == {"in time": False, "calm": False}


def test_when_more_is_kept_the_target_grows_alone(monkeypatch):
    # A request costs the target 0.5 s before the step and 5 s after it.
    run = simulate(monkeypatch, scaling(), rate=lambda _: 0.25, keep_rate=lambda time: 0.1 if time < STEP_AT else 1.0)
    assert run.first_growth("target", STEP_AT) < float("inf")
    assert run.first_growth("speculator", STEP_AT) == float("inf")
    assert run.reversals("target", STEP_AT) <= 1


def test_to_zero_and_up_again(monkeypatch):
    run = simulate(
        monkeypatch, scaling(min_replicas=0), rate=lambda time: 0.5 if time < 60 or time > 240 else 0.0, seconds=360
    )
    for pool in run.pools.values():
        assert pool.history[230] == 0
        assert pool.history[-1] >= 1
    assert all(request.answered for request in run.requests if request.arrived < 320)
