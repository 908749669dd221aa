"""What happens to the pods of a RayService under requests: an update in place, a dead head, a cluster that is deleted.

Ray's head and one worker node are processes of this machine; mock engines. The tests run one after the other.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from cluster.config.load import config_from_flags
from cluster.kuberay.service import ray_service
from tests.chaos.support.load import CLIENTS, Load
from tests.chaos.support.pods import LIMIT_S, Pods
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.nightly

DRAIN_S = 3


def deployment(**target: Any) -> dict[str, Any]:
    pools: dict[str, dict[str, Any]] = {
        pool: {"model": str(ROOT / "demo_models" / pool), "engine": "mock", "cpus_per_replica": 0.1}
        for pool in ("speculator", "target")
    }
    pools["target"] |= {"replicas": 2, "engine_options": {"prefill_ms": 100.0, "decode_ms": 20.0}, **target}
    router = {
        "speculative_prefill": "always",
        "min_prompt_tokens": 1024,
        "cpus": 0.1,
        "replicas": 2,
        "select_timeout_s": 20.0,
    }
    return {"served_model_name": "skim-demo", "router": router, "selection": {"selector": "speculator"}, **pools}


def changed() -> dict[str, Any]:
    """Another deployment: routers and targets are replaced, and there is one target more."""
    found = deployment(replicas=3, engine_options={"prefill_ms": 120.0, "decode_ms": 15.0})
    found["router"]["min_prompt_tokens"] = 900
    return found


@pytest.fixture(scope="module")
def pods() -> Iterator[Pods]:
    """With the deployment running. Ray's sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="skim-pods-", dir="/tmp"))
    started = Pods(folder, redis=shutil.which("redis-server") is not None)
    try:
        started.start_head()
        started.start_worker('{"speculator_pool":9,"target_pool":9}')
        deploy(started, deployment())
        yield started
    finally:
        started.close()
        shutil.rmtree(folder, ignore_errors=True)


def deploy(pods: Pods, settings: dict[str, Any]) -> None:
    file = pods.folder / "deployment.yaml"
    file.write_text(yaml.safe_dump(settings))
    pods.deploy(file)


def actor_processes(pods: Pods, name: str) -> dict[int, psutil.Process]:
    """The worker's processes of the actors whose names begin so, by their pid."""
    found = {}
    for process in pods.processes("worker"):
        with suppress(psutil.NoSuchProcess):
            if f"ray::{name}" in " ".join(process.cmdline()):
                found[process.pid] = process
    return found


def replicas(pods: Pods, name: str = "") -> dict[int, psutil.Process]:
    """The processes of the replicas of the deployment `name`, by their pid."""
    return actor_processes(pods, f"ServeReplica:skim:{name}")


def test_an_update_in_place_replaces_routers_and_targets_and_no_request_fails(pods: Pods) -> None:
    before = replicas(pods, "router") | replicas(pods, "target")
    with Load(pods.url) as load:
        load.go_on()
        deploy(pods, changed())
        load.go_on()
    assert load.failed == []
    assert load.modes.keys() == {"speculative"}
    assert not before.keys() & replicas(pods).keys()
    assert len(replicas(pods, "target")) == 3


def test_a_head_that_dies_comes_back_and_no_request_fails(pods: Pods) -> None:
    """All parts stay. Then a target replica dies: only a controller that knows the deployment replaces it."""
    if shutil.which("redis-server") is None:
        pytest.skip("redis-server is not installed")
    before, proxy = replicas(pods), actor_processes(pods, "ProxyActor")
    assert len(proxy) == 1
    with Load(pods.url) as load:
        load.go_on()
        pods.kill("head")
        load.go_on()
        pods.start_head()
        load.go_on()
    assert load.failed == []
    assert replicas(pods).keys() == before.keys()
    targets = replicas(pods, "target")
    victim = next(iter(targets))
    targets[victim].kill()
    deadline = time.monotonic() + LIMIT_S
    while len(replicas(pods, "target").keys() - {victim}) < len(targets):
        assert time.monotonic() < deadline, replicas(pods, "target")
        time.sleep(0.2)
    assert actor_processes(pods, "ProxyActor").keys() == proxy.keys()


def test_a_deleted_cluster_sends_its_clients_away(pods: Pods) -> None:
    """The head ends at once, and the worker after its hook. Clients that go on to come to it are answered till then."""
    settings = {"kubernetes.drain_seconds": DRAIN_S, "target.engine": "mock", "speculator.engine": "mock"}
    options = {"target.engine_options": {}, "speculator.engine_options": {}}
    spec = ray_service(config_from_flags(ROOT / "examples" / "demo.yaml", settings | options))["spec"]
    [pod] = [group for group in spec["rayClusterConfig"]["workerGroupSpecs"] if group["groupName"] == "router"]
    *shell, text = pod["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    hook = [*shell, text.replace("timeout 20 ", "timeout 2 ")]
    with Load(pods.url) as load:
        load.go_on()
        assert load.connections.keys() == {"none"}
        pods.kill("head")
        ending = threading.Thread(target=pods.run_hook, args=(hook,))
        ending.start()
        load.go_on(3 * CLIENTS)
        ending.join()
    assert load.failed == []
    assert load.connections["close"] >= CLIENTS
