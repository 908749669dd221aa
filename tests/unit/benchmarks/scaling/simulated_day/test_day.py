"""The traffic on a system: first tokens, modes, caches, GPU hours, and what scaling changes."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.scaling.simulated_day import compare as comparison
from benchmarks.scaling.simulated_day.compare import compare
from benchmarks.scaling.simulated_day.day import MODES, System, simulate
from benchmarks.scaling.simulated_day.pool import PoolPlan
from benchmarks.scaling.simulated_day.traffic import Traffic, daily
from cluster.config.pools import AutoscalingConfig
from cluster.plan.formulas import mean_wait
from cluster.plan.pools import Load
from skim_common.errors import SkimError
from tests.unit.benchmarks.scaling.simulated_day.engines import Timed
from tests.unit.cluster.plan.test_size import sizer

DENSE, SPECULATIVE = MODES.index("dense"), MODES.index("speculative")
TARGET = PoolPlan(Timed(), 4, 1, 1e6)
SPECULATOR = PoolPlan(Timed(1e-5, 0.001), 1, 1, 1e6)
SKIM = System(TARGET, SPECULATOR, skim_s=0.05)
PLAIN = System(TARGET)


def traffic(at, prompt=10_000, answer=10, known=0, before=-1, seconds=None) -> Traffic:
    at = np.array(at, float)
    full = [np.broadcast_to(np.array(column), at.shape).copy() for column in (prompt, answer, known, before)]
    prompts, answers, knowns, befores = full
    pause = np.where(befores < 0, np.inf, at - at[befores])
    return Traffic(seconds or float(at[-1]) + 1, at, prompts, answers, knowns, befores, pause)


def steady(rate: float, seconds: float, seed: int = 0, **fields) -> Traffic:
    at = np.cumsum(np.random.default_rng(seed).exponential(1 / rate, int(rate * seconds)))
    return traffic(at, **fields)


def test_one_prompt_takes_what_the_engines_take():
    one = traffic([3.0])
    assert simulate(one, PLAIN).first == pytest.approx([1.0])
    day = simulate(one, replace(SKIM, keep_rate=0.2))
    assert day.mode.tolist() == [SPECULATIVE]
    assert day.first == pytest.approx([0.1 + 8 * 0.001 + 0.05 + 0.2])
    assert day.tpot == pytest.approx([0.01], rel=0.05)


def test_waits_are_those_of_a_queue():
    day = simulate(steady(0.7, 60_000), replace(PLAIN, tick_s=60.0))
    assert day.first.mean() == pytest.approx(1.0 + mean_wait(0.7, 1.0), rel=0.06)


def test_prefills_slow_answers_down():
    light, heavy = (simulate(steady(rate, 20_000), PLAIN).tpot.mean() for rate in (0.1, 0.6))
    assert light < 1.3 * 0.01
    assert heavy > 2 * 0.01


def test_a_short_prompt_runs_dense_and_always_selects_all_of_the_others():
    both = traffic([1.0, 5.0], prompt=[1000, 10_000])
    assert simulate(both, SKIM).mode.tolist() == [DENSE, SPECULATIVE]
    slow = replace(SKIM, speculator=replace(SPECULATOR, engine=Timed(1.0)))
    assert simulate(both, slow).mode.tolist() == [DENSE, DENSE]
    assert simulate(both, replace(slow, always=True)).mode.tolist() == [DENSE, SPECULATIVE]


def test_a_cached_beginning_is_not_read_again_and_is_forgotten_in_time():
    turns = traffic([1.0, 40.0], prompt=[10_000, 10_200], known=[0, 10_010], before=[-1, 0])
    first, second = simulate(turns, PLAIN).first
    assert (first, second) == (pytest.approx(1.0), pytest.approx(0.019))
    # 200 other prompts of 10,000 tokens in between, in a cache of a million tokens.
    at = [1.0, *np.linspace(2, 398, 200), 400.0]
    crowded = traffic(at, prompt=10_200, known=[*[0] * 201, 10_010], before=[*[-1] * 201, 0])
    assert simulate(crowded, PLAIN).first[-1] > 1.0
    roomy = replace(PLAIN, target=replace(TARGET, cache_tokens=1e8))
    assert simulate(crowded, roomy).first[-1] < 0.1


def test_a_later_turn_of_a_speculative_prompt_reads_little_on_both_pools():
    turns = traffic([1.0, 40.0], prompt=[10_000, 10_200], known=[0, 10_010], before=[-1, 0])
    day = simulate(turns, SKIM)
    assert day.mode.tolist() == [SPECULATIVE, SPECULATIVE]
    assert day.first[1] < 0.1 < day.first[0]


def test_full_answers_wait_for_room():
    """Each answer of 2000 tokens takes 20 s; a replica has two at a time."""
    long = traffic([1.0] * 6, prompt=100, answer=2000)
    free = simulate(long, PLAIN).first
    full = simulate(long, replace(PLAIN, target=replace(TARGET, most_rows=2))).first
    assert free.max() < 1
    assert full.max() > 30


def test_overload_is_refused_and_without_admission_it_waits():
    crowd = steady(3.0, 300)
    day = simulate(crowd, replace(PLAIN, max_wait_s=20))
    assert 0.5 < np.isinf(day.first).mean() < 0.75
    assert day.first[np.isfinite(day.first)].max() <= 21.1
    assert np.isfinite(simulate(crowd, replace(PLAIN, max_wait_s=np.inf)).first).all()


def test_gpu_hours_are_those_of_the_replicas_over_time():
    day = simulate(steady(0.2, 3600), replace(SKIM, target=replace(TARGET, replicas=3)))
    ticks = len(day.replicas["target"])
    assert ticks == pytest.approx(360, abs=40)
    assert day.gpu_hours == {
        "target": pytest.approx(3 * 4 * ticks * 10 / 3600),
        "speculator": pytest.approx(1 * 1 * ticks * 10 / 3600),
    }
    scaling = AutoscalingConfig(policy="work", max_replicas=4)
    scaled = simulate(steady(1.5, 3600), replace(PLAIN, target=replace(TARGET, scaling=scaling)))
    assert scaled.gpu_hours["target"] == pytest.approx(sum(scaled.replicas["target"]) * 4 * 10 / 3600)
    assert max(scaled.replicas["target"]) > 1


def test_the_same_traffic_gives_the_same_day():
    scaled = replace(TARGET, scaling=AutoscalingConfig(policy="work", max_replicas=4))
    system = replace(SKIM, target=scaled)
    crowd = steady(2.0, 2000)
    first, again = simulate(crowd, system), simulate(crowd, system)
    assert np.array_equal(first.first, again.first)
    assert first.replicas == again.replicas


@pytest.mark.parametrize("policy", ["work", "requests"])
def test_without_its_policy_fewer_requests_are_in_time(policy):
    """Negative control: the load is 2.5 times what one replica carries."""
    crowd = steady(2.5, 6000)
    scaling = AutoscalingConfig(policy=policy, max_replicas=6, target_ongoing_requests=1.5, drain_s=1)
    alone = replace(PLAIN, max_wait_s=np.inf)
    on = simulate(crowd, replace(alone, target=replace(TARGET, scaling=scaling)))
    off = simulate(crowd, alone)
    in_time = [(day.first <= 4).mean() for day in (on, off)]
    assert in_time[0] > 0.8
    assert in_time[1] < 0.1


LOAD = Load(qps=1, prompt=32000, answer=300, slo_ttft=2, slo_tpot=0.05)


@pytest.fixture(scope="module")
def part():
    """The first two hours of a day, whose load falls."""
    day = daily(20.0, 32000, 300, seed=1)
    end = int(np.searchsorted(day.at, 2 * 3600))
    columns = (day.at, day.prompt, day.answer, day.known, day.before, day.pause)
    return Traffic(2 * 3600.0, *(column[:end] for column in columns))


def test_the_three_systems_have_the_same_traffic_and_the_same_gpus_at_most(part):
    result = compare(sizer(), LOAD, part)
    for found in result["systems"].values():
        assert sum(found["most_replicas"].values()) <= result["most_gpus"]
        assert found["within"] <= min(found["within_ttft"], found["within_tpot"])
        assert sum(found["gpu_hours"].values()) <= result["most_gpus"] * (result["hours"] + 0.01)
    skim, plain = result["systems"]["skim"], result["systems"]["plain"]
    assert skim["within"] > plain["within"]


def test_a_slow_target_is_seen(part, monkeypatch):
    """Negative control: with targets of a twentieth of the speed, the share within the SLOs falls."""
    good = compare(sizer(), LOAD, part)["systems"]["skim"]["within"]
    original = comparison.simulate

    def slower(traffic, system):
        engine = system.target.engine
        machine = replace(engine.machine, linear=engine.machine.linear / 20)
        return original(
            traffic, replace(system, target=replace(system.target, engine=replace(engine, machine=machine)))
        )

    monkeypatch.setattr(comparison, "simulate", slower)
    assert compare(sizer(), LOAD, part)["systems"]["skim"]["within"] < good - 0.3


def test_slos_that_nothing_keeps_are_an_error(part):
    with pytest.raises(SkimError, match="no number of these GPUs keeps the SLOs"):
        compare(sizer(), replace(LOAD, slo_ttft=0.01), part)
