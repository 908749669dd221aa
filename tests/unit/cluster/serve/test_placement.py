import os
from pathlib import Path

import pytest

from cluster.config.load import config_from_flags
from cluster.serve.placement import on_own_cores
from skim_common.environment import CORES

DEMO = Path(__file__).parents[4] / "examples" / "demo.yaml"


def bound(monkeypatch, cores, **settings):
    """The cores of each pool on a machine with `cores`; None where vLLM decides."""
    monkeypatch.delenv(CORES, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(cores))
    config = on_own_cores(config_from_flags(DEMO, settings).placed(on_gpus=False))
    return {name: pool.environment.get(CORES) for name, pool in config.pools.items()}


def test_two_pools_on_two_cores(monkeypatch):
    assert bound(monkeypatch, [0, 1]) == {"speculator": "0", "target": "1"}
    assert bound(monkeypatch, [4, 7]) == {"speculator": "4", "target": "7"}


def test_no_pool_gets_fewer_cores_than_vllm_would_give_it(monkeypatch):
    undecided = {"speculator": None, "target": None}
    assert bound(monkeypatch, range(3)) == undecided
    assert bound(monkeypatch, range(32)) == undecided
    assert bound(monkeypatch, [0]) == undecided


@pytest.mark.parametrize(
    "settings",
    [
        {"target.tensor_parallel": 2},
        {"target.topology": "split"},
        {"target.engine": "mock"},
        {"speculator.gpus_per_replica": 1},
    ],
)
def test_other_deployments_are_left_as_they_are(monkeypatch, settings):
    assert set(bound(monkeypatch, [0, 1], **settings).values()) == {None}


def test_cores_that_a_pool_names_stay(monkeypatch):
    assert bound(monkeypatch, [0, 1], **{"target.env": {CORES: "0,1"}}) == {"speculator": None, "target": "0,1"}
