"""The replicas of a simulated pool: who waits, what the pool reports, and how it follows the load."""

import numpy as np
import pytest

from benchmarks.scaling.simulated_day.pool import ANSWER, READ, PoolPlan, SimulatedPool
from benchmarks.scaling.simulated_day.scaling import Autoscaler
from cluster.config.pools import AutoscalingConfig
from cluster.serve.autoscaling import Load
from tests.unit.benchmarks.scaling.simulated_day.engines import Timed

WORK = AutoscalingConfig(policy="work", max_replicas=8, drain_s=4, upscale_delay_s=0, downscale_delay_s=60)


def pool(
    replicas: int, scaling: AutoscalingConfig | None = None, weight: float = 1.0, rows: int = 256, tokens: float = 1e9
) -> SimulatedPool:
    return SimulatedPool(PoolPlan(Timed(), 1, replicas, tokens, rows, scaling), 20.0, 10.0, weight)


def begins(own: SimulatedPool, at, service, most_wait_s: float = np.inf) -> np.ndarray:
    at, service = np.array(at, float), np.array(service, float)
    return own.read(at, service, most_wait_s)


def requests(*rows) -> np.ndarray:
    """Requests that arrived, begin and are read at these times; with so many tokens, and no answer."""
    return np.array([[arrived, begin, read, 0, tokens, 0, 0] for arrived, begin, read, tokens in rows], float).T


def answers(own: SimulatedPool, at, now: float = 10.0, tokens: int = 9, most_wait_s: float = np.inf) -> list[float]:
    """When prompts of 90 tokens that take 1 s begin, with answers of `tokens` tokens, 1 s each."""
    own.step_s = 1.0
    asked = requests(*((arrived, 0, 0, 90) for arrived in at))
    asked[ANSWER] = tokens
    begun = own.answer(asked, np.ones(len(at)), now, most_wait_s)
    own.take(asked[:, np.isfinite(begun)])
    own.tick(now, 0)
    return begun.tolist()


def test_the_replica_that_is_free_first_takes_the_next_prompt():
    at, service = [0, 0, 0, 1], [3, 1, 1, 1]
    assert begins(pool(1), at, service).tolist() == [0, 3, 4, 5]
    assert begins(pool(2), at, service).tolist() == [0, 0, 1, 2]


def test_a_prompt_that_would_wait_too_long_is_refused_and_costs_nothing():
    assert begins(pool(1), [0, 1, 2], [9, 9, 1], 7.0).tolist() == [0, np.inf, 9]


def test_a_prompt_waits_until_there_is_room_for_its_answer():
    """An answer of 5 tokens ends 4 s after its prompt was read."""
    assert answers(pool(1), [0] * 4, tokens=5) == [0, 1, 2, 3]
    assert answers(pool(1, rows=2), [0] * 4, tokens=5) == [0, 1, 5, 6]
    assert answers(pool(1, tokens=190), [0] * 4, tokens=5) == [0, 1, 5, 6]
    assert answers(pool(2, rows=2), [0] * 4, tokens=5) == [0, 0, 1, 1]


def test_what_cannot_begin_in_this_tick_waits_for_the_next_one():
    own = pool(1, rows=1)
    found = answers(own, [0, 1, 2], tokens=16)
    assert found[0] == 0
    assert np.isnan(found[1:]).all()
    assert answers(own, [1, 2], now=20.0, tokens=16)[0] == 16  # a step takes a second, as before
    assert answers(own, [2, 21], now=30.0, tokens=3, most_wait_s=5.0)[0] == np.inf


def test_an_answer_goes_on_at_the_speed_of_each_tick():
    own = pool(1)
    answers(own, [9.0], tokens=11)  # read at 10: 10 steps are left
    own.step_s = 2.0
    assert own.tick(20.0, 0)[0].size == 0
    own.step_s = 0.5
    ended, ends = own.tick(30.0, 0)
    assert ends == pytest.approx([22.5])
    assert (own.rows, own.has.size) == (0, 0)
    assert ended[READ] == [10.0]


@pytest.mark.parametrize("busy", [0.3, 0.6, 0.9])
def test_the_mean_wait_is_that_of_one_server(busy):
    """Pollaczek and Khinchine, for Poisson arrivals and equal prompts: `cluster.plan.formulas.mean_wait`."""
    from cluster.plan.formulas import mean_wait

    at = np.cumsum(np.random.default_rng(0).exponential(1 / busy, 200_000))
    waits = begins(pool(1), at, np.ones(at.size)) - at
    assert waits.mean() == pytest.approx(mean_wait(busy, 1.0), rel=0.05)


def test_what_a_pool_that_reads_reports():
    own = pool(2)
    own.take(requests((1, 1, 3, 100), (2, 2, 6, 300), (8, 8, 12, 200)))
    load = own._load(10.0, own.has[READ], queued=1)
    assert load.busy == pytest.approx((2 + 4 + 2) / 10)  # of two replicas
    assert (load.requests, load.queued) == (pytest.approx((2 + 4 + 2) / 10 + 1), 1)
    assert load.tokens == pytest.approx((2 * 100 + 4 * 300 + 2 * 200) / 10)
    assert (load.seconds_per_request, load.seconds_per_token) == (pytest.approx(3), pytest.approx(6 / 400))
    own.tick(10.0, 0)
    assert own._load(20.0, own.has[READ], 0).busy == pytest.approx(0.2)  # the third one's rest; the others are gone


def test_a_request_that_stands_for_several_takes_as_much_of_the_pool_and_reports_as_much():
    whole, part = pool(8), pool(8, weight=4.0)
    part.take(requests((0, 0, 1, 100)))
    whole.take(requests(*[(0, 0, 1, 100)] * 4))
    assert part._load(10.0, part.has[READ], 0) == whole._load(10.0, whole.has[READ], 0)
    assert begins(pool(1, weight=4.0), [0, 0], [1, 1]).tolist() == [0, 4]


def test_a_large_pool_waits_little_although_only_a_share_is_simulated():
    def mean_wait(weight: float) -> float:
        at = np.cumsum(np.random.default_rng(1).exponential(weight / 40, round(80_000 / weight)))
        return float((begins(pool(50, weight=weight), at, np.ones(at.size)) - at).mean())

    assert mean_wait(1.0) < mean_wait(8.0) < 0.1


def test_a_pool_grows_with_its_work_and_the_new_replicas_start_first():
    own = pool(1, WORK)
    at = np.arange(0.0, 10.0, 0.5)
    found = begins(own, at, np.full(at.size, 2.0))
    own.take(requests(*zip(at, found, found + 2, [100] * at.size, strict=True)))
    own.tick(10.0, 0)
    assert own.replicas > 1
    assert sorted(begins(own, [10] * 10, [1] * 10))[0] == 30.0  # 20 s of start


def test_a_pool_that_shrinks_stops_what_still_starts_first():
    own = pool(1, WORK)
    own.take(requests(*[(0, 0, 9, 900)] * 9))
    own.tick(10.0, 20)
    starting = own._free.count(30.0)
    assert starting > 1
    own._stop_one()
    assert own._free.count(30.0) == starting - 1
    assert begins(own, [25.0], [1.0]).tolist() == [25.0]


def test_serves_delay_keeps_a_pool_that_is_idle_for_a_moment():
    scaler, idle, busy = Autoscaler(WORK, 10.0), Load(), Load(4, 0, 400, 3.2, 1.0, 0.01)
    assert scaler.wanted(10, busy, 4, 4) == 4
    for now in range(20, 80, 10):
        assert scaler.wanted(now, busy if now == 50 else idle, 4, 4) == 4
    sizes = [scaler.wanted(now, idle, 4, 4) for now in range(80, 160, 10)]
    assert min(sizes) < 4
