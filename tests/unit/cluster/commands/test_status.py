"""`skim status`: one line per pool, with the reason if it is down."""

import threading

import pytest

from actors.lifecycle.starts import FailedStart
from cluster.serve import status as state
from cluster.serve.app import APP_NAME
from cluster.serve.status import FAILED_START
from tests.unit.cluster.commands.deployment import part, put

FAILURE = (
    f"A replica {FAILED_START}. Retrying 999998 more time(s). Error:\nTraceback (most recent call last):\n"
    '  File "/x/y.py", line 1, in z\nkv_transfer.errors.ModelError: model folder /models/big does not exist\n'
)
KILLED = (
    f"A replica {FAILED_START}. Retrying. Error:\nray.exceptions.ActorDiedError: The actor died unexpectedly before "
    "finishing this task.\nThe actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR"
)
UNPLACED = (
    "Deployment 'target' in application 'skim' has 1 replicas that have taken more than 30s to be scheduled. This may "
    "be due to waiting for the cluster to auto-scale or for a runtime environment to be installed. Resources required "
    "for each replica: {'CPU': 1.0, 'GPU': 2.0}, total resources available: {'CPU': 3.0}. Use `ray status` for more"
    " details."
)


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


@pytest.mark.parametrize(
    ("state", "running", "code"),
    [("UPSCALING", 1, 0), ("DOWNSCALING", 0, 0), ("UPDATING", 1, 0), ("UPDATING", 0, 1), ("UNHEALTHY", 1, 1)],
)
def test_a_pool_that_changes_while_it_runs_is_not_down(skim, served, state, running, code):
    put(served, target=part(state, {"RUNNING": running, "STARTING": 1}))
    ran = skim("status")
    assert ran.code == code
    assert ran.out.startswith(f"target: {state.lower()} ({running} running, 1 starting)")


def test_a_replica_that_waits_for_nodes(skim, served, monkeypatch):
    bundles = {0: {"CPU": 4.0, "GPU": 1.0, "target_pool": 0.1666}} | {
        index: {"GPU": 1.0, "target_pool": 0.1666} for index in range(1, 12)
    }
    groups = {
        "1": {"name": f"SERVE_REPLICA::{APP_NAME}#target#x", "state": "PENDING", "bundles": bundles},
        "2": {"name": f"SERVE_REPLICA::{APP_NAME}#target#y", "state": "CREATED", "bundles": bundles},
        "3": {"name": "another program's", "state": "PENDING", "bundles": bundles},
    }
    monkeypatch.setattr(state, "placement_group_table", lambda: groups)
    put(served, target=part("UPDATING", {"STARTING": 1, "RUNNING": 1}, "it takes long"))
    assert skim("status").out == (
        "target: updating (1 running, 1 starting): a replica waits for nodes with 4 CPU, 12 GPU, 2 target_pool in all\n"
    )


def test_where_nothing_runs(skim, served):
    ran = skim("status")
    assert ran.code == 2
    assert "no deployment of Skim runs on the Ray cluster at auto" in ran.error


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (KILLED, "the process of a replica was killed while it started, perhaps by the kernel for memory"),
        (UNPLACED, "a replica waits for free resources: it needs 'CPU': 1.0, 'GPU': 2.0; the cluster has 'CPU': 3.0"),
        ("A replica's health check failed. It will be UNHEALTHY.", "a replica died or hung; another one is starting"),
        ("have taken more than 30s to initialize.\nThis may be slow.", "a replica takes long to start"),
    ],
)
def test_a_message_of_serve_is_said_in_one_plain_line(skim, served, message, reason):
    put(served, target=part("UNHEALTHY", {"STARTING": 1}, message))
    assert skim("status").out == f"target: unhealthy (0 running, 1 starting): {reason}\n"


@pytest.mark.parametrize(("failures", "times"), [(1, ""), (5, " 5 times in a row")])
def test_a_failed_start_that_serve_has_forgotten_is_the_reason(skim, served, monkeypatch, failures, times):
    """After the controller has died, only Ray's key-value store knows it."""
    found = {"target": FailedStart(failures, "no such model", 0.0)}
    monkeypatch.setattr(state, "last_failed_start", lambda app, pool: found.get(pool))
    put(served, target=part("UNHEALTHY", {"STARTING": 1}, "A replica's health check failed."))
    assert skim("status").out == (
        f"target: unhealthy (0 running, 1 starting): a replica failed to start{times}: no such model\n"
    )


def test_a_proxy_that_does_not_answer(skim, served):
    put(served, router=part("HEALTHY", {"RUNNING": 1}))
    served.proxies = {"one": "HEALTHY", "two": "UNHEALTHY"}
    ran = skim("status")
    assert (ran.code, ran.out) == (1, "router: healthy (1 running)\nproxy: 1 of 2 do not answer\n")


def test_a_failed_start_probe_is_a_line_of_its_own(skim, served, monkeypatch):
    monkeypatch.setattr(state, "failed_probes", lambda app: {"target": "restored positions change nothing"})
    put(served, target=part("HEALTHY", {"RUNNING": 1}))
    ran = skim("status")
    assert (ran.code, ran.out.splitlines()[1]) == (
        1,
        "target start probe: failed, so all prompts run dense (start_probe: off trusts the pool): restored positions"
        " change nothing",
    )


def test_a_controller_that_does_not_answer_is_waited_for_in_vain(skim, served, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(state, "PATIENT_LIMIT_S", 0.01)
    monkeypatch.setattr(state.serve, "status", answer.wait)
    ran = skim("status")
    answer.set()
    assert ran.code == 2
    assert "Serve's controller on the Ray cluster at auto did not answer in 0.01 s" in ran.error
