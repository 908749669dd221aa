"""`skim status`: one line per pool, with the reason if it is down."""

from types import SimpleNamespace

import pytest
from ray.serve.schema import ApplicationStatusOverview, DeploymentStatusOverview

from cluster.commands import status
from cluster.serve.app import APP_NAME
from cluster.serve.deployment import FAILED_START

FAILURE = (
    f"A replica {FAILED_START}. Retrying 999998 more time(s). Error:\nTraceback (most recent call last):\n"
    '  File "/x/y.py", line 1, in z\nkv_transfer.errors.ModelError: model folder /models/big does not exist\n'
)


def part(state, replicas, message=""):
    return DeploymentStatusOverview(state, "UNSPECIFIED", replicas, message)


@pytest.fixture
def served(monkeypatch):
    """The applications that Serve reports, by name; tests fill it."""
    applications = {}
    monkeypatch.setattr(status, "join_ray", lambda address: None)
    monkeypatch.setattr(status, "placement_group_table", dict)
    monkeypatch.setattr(status.serve, "status", lambda: SimpleNamespace(applications=applications))
    return applications


def put(served, **parts):
    served[APP_NAME] = ApplicationStatusOverview("DEPLOYING", "", 0, parts)


def test_all_is_well(skim, served):
    put(served, target=part("HEALTHY", {"RUNNING": 2}), router=part("HEALTHY", {"RUNNING": 1}))
    ran = skim("status")
    assert (ran.code, ran.out) == (0, "router: healthy (1 running)\ntarget: healthy (2 running)\n")


def test_a_pool_that_is_down_says_why(skim, served):
    put(
        served,
        speculator=part("UPDATING", {"STARTING": 1}),
        target=part("UPDATING", {"STARTING": 1, "STOPPING": 0}, FAILURE),
    )
    ran = skim("status")
    assert ran.code == 1
    assert ran.out == (
        "speculator: updating (0 running, 1 starting): replicas are starting or ending\n"
        "target: updating (0 running, 1 starting): model folder /models/big does not exist\n"
    )


def test_a_replica_that_waits_for_nodes(skim, served, monkeypatch):
    bundles = {0: {"CPU": 4.0, "GPU": 1.0, "target_pool": 0.1666}} | {
        index: {"GPU": 1.0, "target_pool": 0.1666} for index in range(1, 12)
    }
    groups = {
        "1": {"name": f"SERVE_REPLICA::{APP_NAME}#target#x", "state": "PENDING", "bundles": bundles},
        "2": {"name": f"SERVE_REPLICA::{APP_NAME}#target#y", "state": "CREATED", "bundles": bundles},
        "3": {"name": "another program's", "state": "PENDING", "bundles": bundles},
    }
    monkeypatch.setattr(status, "placement_group_table", lambda: groups)
    put(served, target=part("UPDATING", {"STARTING": 1, "RUNNING": 1}, "it takes long"))
    assert skim("status").out == (
        "target: updating (1 running, 1 starting): a replica waits for nodes with 4 CPU, 12 GPU, 2 target_pool in all\n"
    )


def test_where_nothing_runs(skim, served):
    ran = skim("status")
    assert ran.code == 2
    assert "no deployment of Skim runs on the Ray cluster at auto" in ran.error
