"""Starting a deployment in a cluster that others may use too. Ray and Serve are replaced by fakes."""

import inspect
import logging
import os
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
from ray._private import ray_constants
from ray.exceptions import RayError
from ray.serve._private.deployment_state import DeploymentState
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatusOverview, DeploymentStatusOverview

from actors.lifecycle.starts import FailedStart
from actors.ray_hooks.ray_core import ON_LOOPBACK
from actors.ray_hooks.serve import is_for_the_user
from cluster.config.load import config_from_flags, load_config
from cluster.serve import deployment, preflight, ray_cluster, status
from cluster.serve.app import APP_NAME, SERVE_SWITCHES
from cluster.serve.placement import check_fit
from cluster.serve.status import FAILED_START
from skim_common.environment import CORES
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

CONFIG_FILE = MODELS.parent / "examples" / "demo.yaml"
CONFIG = load_config(CONFIG_FILE)


@pytest.fixture
def cluster(monkeypatch):
    """A fake cluster: `applications` run in it, and `calls` lists the calls that would change something."""
    cluster = SimpleNamespace(applications={}, serve_up=False, calls=[])
    monkeypatch.setattr(deployment.serve, "status", lambda: SimpleNamespace(applications=cluster.applications))
    monkeypatch.setattr(deployment.serve, "delete", lambda name: cluster.calls.append(f"delete {name}"))
    monkeypatch.setattr(deployment.ray, "shutdown", lambda: cluster.calls.append("leave"))
    monkeypatch.setattr(deployment, "running_http_options", lambda: HTTPOptions() if cluster.serve_up else None)
    monkeypatch.setattr(deployment, "check_port", lambda host, port: cluster.calls.append(f"check {port}"))
    return cluster


def test_an_empty_cluster_needs_the_port(cluster):
    deployment._prepare_cluster(CONFIG, APP_NAME)
    assert cluster.calls == ["check 8000"]


def test_an_idle_serve_holds_the_port_itself(cluster):
    cluster.serve_up = True
    deployment._prepare_cluster(CONFIG, APP_NAME)
    assert cluster.calls == []


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ([8.0], None),
        ([4.0, 8.0], None),
        (
            [4.0, 4.0],
            r"no node .* all the resources of one target replica \(0.5 CPU, 8 GPU, 1 target_pool\); .* larger node",
        ),
        ([4.0], r"has 4 GPUs, but this deployment needs 8: use fewer replicas .* gpus_per_replica .* a fraction"),
    ],
)
def test_a_replica_and_its_ranks_must_fit_on_one_node(gpus, told):
    """Serve would wait silently for a large enough node, even if all nodes together have enough GPUs."""
    config = config_from_flags(
        MODELS.parent / "examples" / "demo.yaml",
        {"target.tensor_parallel": 8, "target.gpus_per_replica": 8, "speculator.gpus_per_replica": 0},
    )
    pools = {"speculator_pool": 1.0, "target_pool": 1.0}
    nodes = [{"CPU": 8.0, "GPU": count, **pools} for count in gpus]
    offered = {"CPU": 8.0, "GPU": sum(gpus), **pools}
    with pytest.raises(SkimError, match=told) if told else nullcontext():
        check_fit(config, offered, nodes)


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ([(8.0, 1), (8.0, 1)], None),
        (
            [(0.5, 1), (8.0, 0)],
            r"needs 2 nodes .*, the first with 2 CPU, 4 GPU, 1 target_pool, and 0 have the resources",
        ),
        (
            [(8.0, 1), (3.0, 2)],
            r"one target replica needs 2 nodes .* and 1 has the resources of a part: start more such",
        ),
    ],
)
def test_each_part_of_a_replica_must_fit_on_a_node(nodes, told):
    sizes = {"tensor_parallel": 4, "pipeline_parallel": 2, "nodes_per_replica": 2, "cpus_per_replica": 2}
    changes = {**{f"target.{name}": value for name, value in sizes.items()}, "decode.method": "none"}
    config = config_from_flags(MODELS.parent / "examples" / "demo.yaml", {**changes, "speculator.gpus_per_replica": 0})
    pools = [{"speculator_pool": 1.0}, *({"target_pool": float(parts)} for _, parts in nodes)]
    gpus = [0.0, *(count for count, _ in nodes)]
    offered = [{"CPU": 8.0, "GPU": count, **pool} for count, pool in zip(gpus, pools, strict=True)]
    total = {"CPU": 24.0, "GPU": 16.0, "speculator_pool": 1.0, "target_pool": 2.0}
    with pytest.raises(SkimError, match=told) if told else nullcontext():
        check_fit(config.placed(on_gpus=True), total, offered)


def test_one_machine_is_not_several_nodes():
    changes = {"target.tensor_parallel": 2, "target.nodes_per_replica": 2}
    config = config_from_flags(MODELS.parent / "examples" / "demo.yaml", changes)
    with pytest.raises(
        SkimError, match=r"target\.nodes_per_replica is 2, and this machine is one node: start Ray on all"
    ):
        deployment.deployed(config).__enter__()


def test_what_a_killed_run_left_is_replaced(cluster):
    cluster.serve_up, cluster.applications = True, {"skim-batch-1": None}
    deployment._prepare_cluster(CONFIG, "skim-batch-1")
    assert cluster.calls == ["delete skim-batch-1"]


def test_a_port_in_use_is_found_before_the_models_are_read(monkeypatch):
    monkeypatch.setattr(preflight, "check_models", lambda config: pytest.fail("the models were read"))

    def refuse(host, port):
        raise SkimError(f"cannot listen on {host}:{port}")

    monkeypatch.setattr(preflight, "check_port", refuse)
    with pytest.raises(SkimError, match=r"cannot listen on 127\.0\.0\.1:8000"):
        deployment.deployed(CONFIG).__enter__()


@pytest.fixture
def seen(monkeypatch):
    """The statuses of the application that Serve reports, one per call: application, speculator, trigger, message."""
    seen = []

    def reported():
        if (state := seen.pop(0)) is None:
            raise RayError("the controller is away")
        application, speculator, trigger, *message = state
        parts = {"speculator": (speculator, trigger), "target": ("HEALTHY", "CONFIG_UPDATE_COMPLETED")}
        overview = {name: DeploymentStatusOverview(*states, {}, "") for name, states in parts.items()}
        overview["speculator"].message = "".join(message)
        return SimpleNamespace(applications={APP_NAME: ApplicationStatusOverview(application, "it is so", 0, overview)})

    monkeypatch.setattr(deployment.serve, "status", reported)
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)
    monkeypatch.setattr(status, "_routers_are_ready", lambda name: True)
    return seen


def test_a_deploy_waits_for_the_replica_that_takes_a_dead_ones_place(seen):
    seen += [("UNHEALTHY", "UNHEALTHY", "HEALTH_CHECK_FAILED")] * 2 + [("RUNNING", "HEALTHY", "UNSPECIFIED")]
    told = []
    status.await_running(APP_NAME, told.append, {})
    assert told == ["target is ready", "speculator is ready"]
    assert seen == []


def test_what_has_started_may_die_before_all_is_ready(seen, monkeypatch):
    """Serve and Ray start the rest again: a part that was ready, and Serve's controller."""
    begun = ("DEPLOYING", "UPDATING", "CONFIG_UPDATE_STARTED")
    ready = ("DEPLOYING", "HEALTHY", "CONFIG_UPDATE_COMPLETED")
    died = ("UNHEALTHY", "UNHEALTHY", "REPLICA_STARTUP_FAILED", failed_start(7, "no memory"))
    monkeypatch.setattr(status, "ray_answers", lambda: True)
    seen += [begun, ready, died, None, ("RUNNING", "HEALTHY", "UNSPECIFIED")]
    status.await_running(APP_NAME, lambda line: None, {})
    assert seen == []
    monkeypatch.setattr(status, "ray_answers", lambda: False)
    seen += [begun, ready, None]
    with pytest.raises(RayError):
        status.await_running(APP_NAME, print, {})
    seen.append(begun)
    with pytest.raises(SkimError, match="the deployment has been deleted from its Ray cluster"):
        status.await_running("another", print, {})


@pytest.mark.parametrize(
    "state",
    [
        ("DEPLOY_FAILED", "DEPLOY_FAILED", "REPLICA_STARTUP_FAILED"),
        ("DEPLOY_FAILED", "DEPLOY_FAILED", "HEALTH_CHECK_FAILED"),
        ("UNHEALTHY", "UNHEALTHY", "REPLICA_STARTUP_FAILED"),
        ("UNHEALTHY", "UNHEALTHY", "INTERNAL_ERROR"),
        ("UNHEALTHY", "HEALTHY", "UNSPECIFIED"),
    ],
)
def test_what_does_not_start_is_not_waited_for(seen, state):
    seen += [("UNHEALTHY", "UNHEALTHY", "HEALTH_CHECK_FAILED"), state]
    with pytest.raises(SkimError, match="the deployment did not start: it is so"):
        status.await_running(APP_NAME, print, {})


def test_the_first_failed_start_ends_the_wait(seen):
    """Serve itself would retry forever."""
    failure = f"A replica {FAILED_START}. Retrying 999999 more time(s). Error:\nModelError: no such folder"
    seen += [("DEPLOYING", "UPDATING", "CONFIG_UPDATE_STARTED", failure)]
    with pytest.raises(SkimError, match="the deployment did not start: no such folder"):
        status.await_running(APP_NAME, print, {})


def test_a_start_that_its_limit_ended_says_so(seen, monkeypatch):
    """Serve knows only that the worker process died."""
    seen += [("DEPLOYING", "UPDATING", "CONFIG_UPDATE_STARTED", f"A replica {FAILED_START}. Retrying. Error:\n)")]
    noted = FailedStart(1, "the engine did not start within 90 s", 0.0)
    monkeypatch.setattr(status, "last_failed_start", lambda app, pool: {"speculator": noted}.get(pool))
    with pytest.raises(SkimError, match="the deployment did not start: the engine did not start within 90 s"):
        status.await_running(APP_NAME, print, {})


def failed_start(pid, error):
    where = f"ray::ServeReplica:skim:speculator.initialize_and_get_metadata() (pid={pid}, ip=127.0.0.1)"
    return f"A replica {FAILED_START}. Retrying. Error:\n{where}\nModelError: {error}"


def test_a_failure_from_before_the_change_is_no_failure_of_the_change(seen):
    """The cause is mended and no setting has changed: Serve keeps the old message until the next start has ended."""
    old = failed_start(7, "no such folder")
    seen += [("DEPLOYING", "UPDATING", "CONFIG_UPDATE_STARTED", old)] * 2 + [("RUNNING", "HEALTHY", "UNSPECIFIED")]
    status.await_running(APP_NAME, lambda line: None, {"speculator": old})
    assert seen == []


@pytest.mark.parametrize("error", ["no such folder", "no memory"])
def test_a_failure_after_the_change_is_reported(seen, error):
    old, new = failed_start(7, "no such folder"), failed_start(8, error)
    seen += [("DEPLOYING", "UPDATING", "CONFIG_UPDATE_STARTED", message) for message in (old, new)]
    with pytest.raises(SkimError, match=f"the deployment did not start: {error}"):
        status.await_running(APP_NAME, print, {"speculator": old})


def test_the_messages_before_a_change(seen):
    seen += [("UNHEALTHY", "UNHEALTHY", "HEALTH_CHECK_FAILED", "it died")]
    assert status.messages(APP_NAME) == {"speculator": "it died", "target": ""}


def test_no_messages_before_the_first_deployment(cluster):
    assert status.messages(APP_NAME) == {}


def test_a_slow_start_does_not(seen):
    slow = "Deployment 'target' has 1 replicas that have taken more than 30s to initialize."
    seen += [("DEPLOYING", "UPDATING", "CONFIG_UPDATE_STARTED", slow), ("RUNNING", "HEALTHY", "UNSPECIFIED")]
    status.await_running(APP_NAME, lambda line: None, {})


def test_serve_still_says_so_of_a_failed_start():
    """`await_running` searches Serve's message for this text."""
    assert FAILED_START in inspect.getsource(DeploymentState.record_replica_startup_failure)


@pytest.mark.parametrize(("before", "calls"), [({}, ["delete skim", "leave"]), ({APP_NAME: None}, ["leave"])])
def test_a_first_deployment_that_fails_is_taken_away_and_a_change_is_not(cluster, monkeypatch, before, calls):
    def fail(config, progress):
        cluster.applications = {APP_NAME: None}
        raise SkimError("no such folder")

    cluster.applications = before
    monkeypatch.setattr(preflight, "check_models", lambda config: None)
    monkeypatch.setattr(deployment, "join_ray", lambda address: None)
    monkeypatch.setattr(deployment, "apply", fail)
    with pytest.raises(SkimError, match="no such folder"):
        deployment.deploy(CONFIG, "auto")
    assert cluster.calls == calls


@pytest.mark.parametrize(
    ("problems", "ready"), [([(None, False)] * 2, True), ([(None, False), ("waiting", False)], False), ([], False)]
)
def test_a_deployment_is_ready_when_its_routers_are(monkeypatch, problems, ready):
    answer = SimpleNamespace(results=lambda: problems)
    monkeypatch.setattr(status, "app_handle", lambda name: SimpleNamespace(broadcast=lambda method: answer))
    assert status._routers_are_ready(APP_NAME) == ready
    problems.append(("two tokenizers", True))
    with pytest.raises(SkimError, match="the deployment did not start: two tokenizers"):
        status._routers_are_ready(APP_NAME)


@pytest.mark.parametrize("name", [APP_NAME, "skim-batch-1"])
def test_what_others_serve_is_let_be(cluster, name):
    """Also an application with the name that every `skim serve` uses."""
    cluster.serve_up, cluster.applications = True, {APP_NAME: None}
    with pytest.raises(SkimError, match="this Ray cluster already serves skim: use its endpoint, or stop it"):
        deployment._prepare_cluster(CONFIG, name)
    assert cluster.calls == ["leave"]


@pytest.fixture
def dry_run(cluster, monkeypatch):
    """`deployed` gives the config and starts no Ray. The value is the environment in which Ray would start."""
    told = {}
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(preflight, "check_memory", lambda config: None)
    monkeypatch.setattr(preflight, "check_port", lambda host, port: None)
    monkeypatch.setattr(deployment.ray, "init", lambda **kwargs: told.update(os.environ))
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)
    monkeypatch.setattr(ray_cluster, "is_on_loopback", lambda address: False)
    monkeypatch.setattr(deployment, "_stop", lambda name: None)
    monkeypatch.setattr(deployment, "apply", lambda config, name, progress: config)
    return told


@pytest.mark.parametrize(("address", "cores"), [(None, ["4", "7"]), ("auto", [None, None])])
def test_pools_get_cores_of_their_own_on_a_ray_of_this_machine_alone(dry_run, monkeypatch, address, cores):
    monkeypatch.delenv(CORES, raising=False)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {4, 7})
    with deployment.deployed(CONFIG, address=address) as applied:
        assert [pool.environment.get(CORES) for pool in applied.pools.values()] == cores


@pytest.mark.parametrize(("variable", "everywhere"), [(None, False), ("0", False), ("1", True)])
def test_a_ray_of_this_machine_alone_listens_on_loopback_by_default(dry_run, monkeypatch, variable, everywhere):
    [name] = ON_LOOPBACK
    monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(name, variable)
    with deployment.deployed(CONFIG):
        assert everywhere is ray_constants.ENABLE_RAY_CLUSTER
        assert dry_run[name] == ("1" if everywhere else "0")


def test_a_ray_of_this_machine_alone_is_told_how_to_serve(dry_run, monkeypatch):
    monkeypatch.setenv("RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP", "1")
    with deployment.deployed(CONFIG):
        pass
    of_the_user = {"RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "1"}
    assert dry_run.items() >= (SERVE_SWITCHES | ON_LOOPBACK | of_the_user).items()
    assert "RAY_SERVE_PROXY_USE_GRPC" not in os.environ


@pytest.mark.parametrize(
    ("level", "message", "shown"),
    [
        ("INFO", "Deploying app", False),
        ("WARNING", "The controller is slow", True),
        ("WARNING", "Failed to get queue length from Replica(id='x') within 0.1s.", False),
    ],
)
def test_what_serve_logs_while_a_deployment_starts(level, message, shown):
    record = logging.LogRecord("ray.serve", getattr(logging, level), "", 0, message, None, None)
    assert is_for_the_user(record) is shown


def test_a_second_deployment_of_a_process_asks_its_own_serve(monkeypatch):
    """Serve keeps its client by the id of Ray's job, which is the same in every new Ray."""
    context = pytest.importorskip("ray.serve.context")
    monkeypatch.setattr(context, "_global_client", "of a Ray that has ended")
    monkeypatch.setattr(context, "_global_client_job_id", "01000000")
    monkeypatch.setattr(deployment.ray, "init", lambda **options: None)
    monkeypatch.setattr(context.ray, "is_initialized", lambda: True)
    same_job = SimpleNamespace(get_job_id=lambda: "01000000")
    monkeypatch.setattr(context.ray, "get_runtime_context", lambda: same_job)
    assert context._cached_client_from_current_session(), "the control: Serve would ask the dead controller"
    ray_cluster._init_ray("start Ray", "start again")
    assert not context._cached_client_from_current_session()


@pytest.mark.parametrize(("cpus", "asked"), [(0, 0), (64.5, 65)])
def test_a_ray_of_this_machine_alone_offers_what_is_asked_for(monkeypatch, cpus, asked):
    """Ray finds the GPUs itself, not what is only called so."""
    offered = {}
    monkeypatch.setattr(deployment.ray, "init", lambda **options: offered.update(options))
    monkeypatch.setattr(ray_cluster, "init_on_loopback", lambda alone: None)
    none = {"router.cpus": cpus, "speculator.cpus_per_replica": 0, "target.cpus_per_replica": 0}
    config = config_from_flags(CONFIG_FILE, {**none, "speculator.resources": {"GPU_fast": 1, "CPU_rack": 2}})
    deployment._start_ray(config.placed(on_gpus=True))
    assert offered["num_cpus"] == max(os.cpu_count(), asked)
    assert offered["resources"] == {"GPU_fast": 1, "CPU_rack": 2, "speculator_pool": 1, "target_pool": 1}
