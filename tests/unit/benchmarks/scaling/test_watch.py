"""The requests of each replica, read from the deployment's metrics."""

import threading
import time
from typing import Any

import pytest

from benchmarks.scaling import watch as scale_watch
from benchmarks.scaling.watch import Counts, watched


def series(metric: str, value: float, **tags: str) -> str:
    said = ",".join(f'{name}="{tag}"' for name, tag in tags.items())
    return f"skim_{metric}{{{said}}} {value}\n"


def routed(replica: str, mode: str, value: float) -> str:
    return series("router_requests_total", value, mode=mode, reason="sooner", replica=replica)


def test_the_modes_of_a_replica_add_up_and_replicas_are_told_apart() -> None:
    counts = Counts()
    counts.read(
        "# HELP skim_router_requests_total prompts, by mode\n"
        + routed("a", "dense", 2.0)
        + routed("a", "speculative", 3.0)
        + routed("b", "dense", 7.0)
        + series("target_started_total", 4.0, replica="t#1")
        + series("target_aborted_total", 9.0, replica="t#1")
        + 'ray_serve_replica_utilization_percent{replica="t#1"} 50.0\n'
    )
    assert counts.taken({}) == {"router": [7, 5], "speculator": [], "target": [4]}
    assert counts.taken({"router": 2, "target": 3})["target"] == [4, 0, 0]


def test_the_count_of_a_replica_that_is_gone_stands() -> None:
    counts = Counts()
    counts.read(series("speculator_started_total", 4.0, replica="a"))
    counts.read(series("speculator_started_total", 6.0, replica="a"))
    counts.read(series("speculator_started_total", 1.0, replica="b"))
    assert counts.taken({})["speculator"] == [6, 1]


def test_the_share_at_home_is_over_all_routers() -> None:
    counts = Counts()
    assert counts.at_home() == {}
    for router, outcome, value in (("a", "home", 6.0), ("b", "home", 3.0), ("b", "spilled", 1.0)):
        counts.read(series("router_affinity_total", value, pool="target", outcome=outcome, replica=router))
    assert counts.at_home() == {"target": 0.9}


def test_the_counts_at_the_end_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = threading.Event()

    def look() -> dict[str, Any]:
        looked.set()
        return {"speculator": 1}

    monkeypatch.setattr(scale_watch, "_INTERVAL_S", 0.001)
    monkeypatch.setattr(scale_watch, "_look", look)
    monkeypatch.setattr(scale_watch, "_read_into", lambda counts, url: counts.read(said[0]))
    said = [routed("a", "dense", 2.0)]
    with watched(time.perf_counter(), "http://there") as (samples, counts):
        assert looked.wait(30)
        said[0] = routed("a", "dense", 5.0)
    assert counts.taken({})["router"] == [5]
    assert samples[0]["speculator"] == 1
