"""The scaling benchmark's summary of a run: waiting requests, growth of the pools, changes of direction."""

import json
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from benchmarks.scaling import scale
from benchmarks.scaling.deployment import deployment
from benchmarks.scaling.summary import POOLS, summary, waiting
from benchmarks.scaling.watch import Counts

SETTINGS = scale.ScaleSettings(target="/t", speculator="/s")
BEGINS = {"before": 0.0, "step": 10.0, "after": 50.0}
# Before the step one request waits 1 s. During the step three wait 4 s, 20 s and 2 s. After it one fails.
REQUESTS = [
    {"s": at, "ttft_s": ttft, "failed": ttft is None}
    for at, ttft in [(1.0, 1.0), (12.0, 4.0), (15.0, 20.0), (40.0, 2.0), (52.0, None)]
]


def grown(sizes: dict) -> list[dict]:
    """Samples every 10 s, starting at 5 s, with the given pool sizes."""
    return [
        {"s": 5.0 + 10 * i, **{key: sizes[pool][i] for pool in POOLS for key in (pool, f"{pool}_asked")}}
        for i in range(len(sizes["target"]))
    ]


SAMPLES = grown({"speculator": [1, 1, 3, 3, 2, 2], "target": [1, 1, 1, 2, 1, 2]})


@pytest.fixture
def result() -> dict:
    told = summary(vars(SETTINGS), REQUESTS, SAMPLES, BEGINS, 60.0)
    taken = {"router": [6], "speculator": [4, 1, 1], "target": [4, 2]}
    ran = {"requests": REQUESTS, "samples": SAMPLES, "taken": taken, "at_home": {"speculator": 0.9, "target": 0.75}}
    return {"settings": vars(SETTINGS), "begins": BEGINS, "ends": 60.0, **ran, **told}


def test_who_waits(result: dict) -> None:
    assert [waiting(REQUESTS, at) for at in (0.5, 1.5, 2.0, 15.0, 16.5, 35.0, 53.0)] == [0, 1, 0, 2, 1, 0, 0]


def test_the_table_has_the_parts_of_the_run(result: dict) -> None:
    columns, rows = scale.table(result)
    assert rows == [
        ["before", "1", "0", "1.0", "1.0", "0", "1", "1"],
        ["step, first half", "2", "0", "12.0", "18.4", "2", "3", "1"],
        ["step, second half", "1", "0", "2.0", "2.0", "0", "2", "1"],
        ["after", "1", "1", "-", "-", "0", "2", "2"],
    ]
    assert all(len(row) == len(columns) for row in rows)


def test_growth_and_changes_of_direction_are_counted_from_the_step_on(result: dict) -> None:
    assert result["first_growth_s"] == {"speculator": 15.0, "target": 25.0}
    assert result["direction_changes"] == {"speculator": 1, "target": 2}
    assert (result["objective_s"], result["objective_met_again_after_s"]) == (9.0, None)
    text = scale.describe(result)
    assert "the speculator, grew first: speculator after 15 s, target after 25 s. " in text
    assert "first token, 9 s, was not met again. " in text
    assert "Changes of direction from the step on: 1 (speculator) and 2 (target). " in text


def test_the_requests_of_each_replica_are_told(result: dict) -> None:
    text = scale.describe(result)
    assert text.startswith("1 router. Each pool starts with 1 replica; at most 4 speculators ")
    assert "later ones have fewer: routers 6; speculators 4, 1, 1; targets 4, 2. " in text
    assert text.endswith("which their prefix prefers: 90% (speculator) and 75% (target).")
    assert "their prefix" not in scale.describe(result | {"at_home": {}})


def test_pools_of_a_fixed_size_do_not_scale(result: dict) -> None:
    fixed = {"fixed": True, "routers": 2, "speculators": 4, "targets": 1}
    text = scale.describe(result | {"settings": result["settings"] | fixed})
    assert text.startswith("2 routers, 4 speculators and 1 target all the time. The load rises")
    assert not any(word in text for word in ("starts with", "grew", "direction", "later ones"))


@pytest.mark.parametrize(
    ("speculators", "targets", "first", "calm"),
    [
        ([1, 1, 2, 2, 1], [1, 1, 1, 2, 1], True, True),
        ([1, 1, 2, 2, 2], [1, 1, 1, 1, 1], True, True),
        ([1, 1, 1, 1, 1], [1, 1, 1, 1, 1], False, True),
        ([1, 1, 1, 2, 1], [1, 1, 2, 2, 2], False, True),  # the other pool grew first
        ([1, 1, 2, 2, 2], [1, 1, 2, 2, 2], False, True),  # both grew at once
        ([1, 1, 3, 2, 3], [1, 1, 1, 1, 1], True, False),
    ],
)
def test_whether_the_claims_hold(speculators: list[int], targets: list[int], first: bool, calm: bool) -> None:
    samples = grown({"speculator": speculators, "target": targets})
    told = summary(vars(SETTINGS), REQUESTS, samples, BEGINS, 60.0)
    assert (told["short_pool"], told["short_pool_grew_first"], told["calm"]) == ("speculator", first, calm)
    swapped = vars(SETTINGS) | {"speculator_s": 1.0, "target_s": 2.0}
    assert summary(swapped, REQUESTS, samples, BEGINS, 60.0)["short_pool"] == "target"


def test_the_objective_is_met_again_when_no_later_request_misses_it() -> None:
    answered = REQUESTS[:-1]
    told = summary(vars(SETTINGS), answered, SAMPLES, BEGINS, 60.0)
    assert told["objective_met_again_after_s"] == 30.0
    late = [*answered, {"s": 53.0, "ttft_s": 9.1, "failed": False}]
    told = summary(vars(SETTINGS), late, SAMPLES, BEGINS, 60.0)
    assert told["objective_met_again_after_s"] is None


def test_requests_as_the_load_generator_saves_them() -> None:
    sent = {"start_times": [100.5, 101.0], "ttfts": [0.5, 0.0], "errors": ["", "Service Unavailable"]}
    assert scale.requests_of(sent, 100.0) == [
        {"s": 0.5, "ttft_s": 0.5, "failed": False},
        {"s": 1.0, "ttft_s": None, "failed": True},
    ]


def test_the_deployment_has_the_wanted_sizes() -> None:
    wanted = {"routers": 2, "speculators": 5, "targets": 6}
    scaled = deployment(scale.ScaleSettings("/t", "/s", **wanted))
    fixed = deployment(scale.ScaleSettings("/t", "/s", **wanted, fixed=True))
    assert scaled.router.replicas == fixed.router.replicas == 2
    assert (scaled.router.max_wait_s, scaled.router.keep_alive_s) == (None, 0)
    assert [pool.autoscaling.max_replicas for pool in (scaled.speculator, scaled.target)] == [5, 6]
    assert [pool.autoscaling for pool in (fixed.speculator, fixed.target)] == [None, None]
    assert [pool.replicas for pool in (scaled.speculator, fixed.speculator, fixed.target)] == [1, 5, 6]


def test_a_run_tells_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three phases at their rates; the deployment and the load generator are replaced."""
    sent = []

    def send(load: scale.Load, url: str, requests: int, extra_body: dict, *, rate: float | None = None) -> dict:
        sent.append((url, requests, rate))
        return {"start_times": [time.perf_counter()], "ttfts": [0.5], "errors": [""]}

    monkeypatch.setattr(scale, "deployed", lambda config, progress: nullcontext("http://there"))
    monkeypatch.setattr(scale, "send", send)
    samples = list(SAMPLES)
    monkeypatch.setattr(scale, "watched", lambda zero, url: nullcontext((samples, Counts())))
    monkeypatch.setattr(time, "sleep", lambda seconds: samples.append({}))  # a look after the last answer
    settings = scale.ScaleSettings("/models/t", "/models/s", rate=2.0, step_s=30.0, targets=2, fixed=True)
    told = scale.run(settings)
    assert told["taken"] == {"router": [0], "speculator": [0] * 4, "target": [0] * 2}
    assert sent == [("http://there", *of) for of in ((1, None), (5, 0.4), (60, 2.0), (24, 0.4))]
    assert [request["ttft_s"] for request in told["requests"]] == [0.5] * 3
    assert told["settings"]["target"] == "t"
    assert told["short_pool_grew_first"]
    assert scale.describe(told)
    assert json.loads(json.dumps(told))["samples"] == SAMPLES


@pytest.mark.parametrize("fixed", [False, True])
def test_it_is_drawn(result: dict, tmp_path: Path, fixed: bool) -> None:
    pytest.importorskip("matplotlib")
    scale.plot(result | {"settings": result["settings"] | {"fixed": fixed}}, tmp_path / "scale.png")
    assert (tmp_path / "scale.png").stat().st_size > 10_000
