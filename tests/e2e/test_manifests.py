"""The Serve config of the manifests, on a Ray cluster whose nodes (here processes) match the manifests."""

import json
import math
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import ray
import yaml
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from actors.ray_hooks.ray_core import init_on_loopback
from cluster.config.load import config_from_flags
from cluster.kuberay.service import ray_service
from cluster.serve.app import APP_NAME
from demo_models.ports import free_port

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[2]


class RayService:
    """A RayService's Ray cluster and application on this machine; the test does the operator's work."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self._groups = {group["groupName"]: group for group in spec["rayClusterConfig"]["workerGroupSpecs"]}
        self._served = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
        head = spec["rayClusterConfig"]["headGroupSpec"]["rayStartParams"]
        # A module that joined the Ray of `skim serve` leaves this process on loopback, where `ray drain-node` fails.
        init_on_loopback(False)
        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": int(head["num-cpus"]), "include_dashboard": False}
        )
        self.url = f"http://127.0.0.1:{self._served.http_options.port}"

    def add_node(self, group: str) -> str:
        """Add a pod of the group: a Ray node with the settings of its container. Returns the node id."""
        limits = self._groups[group]["template"]["spec"]["containers"][0]["resources"]["limits"]
        holds = json.loads(json.loads(self._groups[group]["rayStartParams"]["resources"]))
        return str(self.cluster.add_node(num_cpus=math.ceil(float(limits["cpu"])), resources=holds).node_id)

    def start(self) -> None:
        """Deploy as the operator does, but without the dashboard and with another address."""
        ray.init(address=self.cluster.address, log_to_driver=False)
        options = self._served.http_options.model_dump()
        serve.start(http_options={**options, "host": "127.0.0.1", "location": "HeadOnly"})
        client = _get_global_client()
        client.deploy_apps(self._served)
        client._wait_for_application_running(APP_NAME, timeout_s=180)

    def apply(self, spec: dict[str, Any]) -> None:
        """Send a new Serve config, as the operator does after a change of the RayService."""
        _get_global_client().deploy_apps(ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"])))

    def drain(self, group: str, node: str) -> None:
        """Run the preStop command of the group's pods for `node`, without the wait after it."""
        hook = self._groups[group]["template"]["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        _, command, wait = hook[-1].split("; ")
        assert wait.startswith("sleep ")
        _, _, *ray_words = shlex.split(command)  # without its time limit
        words = [*ray_words, "--node-id", node, "--address", self.cluster.address]
        ray_command = Path(sys.executable).with_name(words[0])
        drained = subprocess.run([ray_command, *words[1:]], capture_output=True, text=True, timeout=60)
        assert drained.returncode == 0, drained.stderr

    def close(self) -> None:
        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


PORT = free_port()


def spec(**overrides: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "router.port": PORT,
        "kubernetes.models.mount_path": str(ROOT / "demo_models"),
        "speculator.engine": "mock",
        "speculator.engine_options": {},
        "target.engine": "mock",
        "target.engine_options": {"decode_ms": 100},
    }
    return dict(ray_service(config_from_flags(ROOT / "examples" / "demo.yaml", settings | overrides))["spec"])


@pytest.fixture(scope="module")
def service() -> Iterator[RayService]:
    running = RayService(spec())
    yield running
    running.close()


@pytest.fixture(scope="module")
def nodes(service: RayService) -> dict[str, str]:
    """Node ids by worker group, with the application running on them."""
    started = {group: service.add_node(group) for group in ("router", "speculator", "target")}
    service.start()
    return started


def running(what: str) -> dict[str, set[str]]:
    """For each deployment, the `node_id` or `replica_id` of its running replicas."""
    deployments = _get_global_client().get_serve_details()["applications"][APP_NAME]["deployments"]
    return {
        name: {replica[what] for replica in deployment["replicas"] if replica["state"] == "RUNNING"}
        for name, deployment in deployments.items()
    }


def test_it_answers(service: RayService, nodes: dict[str, str]) -> None:
    body = {"model": "skim-demo", "prompt": "the price of tea", "max_tokens": 4}
    answer = httpx.post(f"{service.url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 4


def test_each_pool_stands_on_its_own_nodes(nodes: dict[str, str]) -> None:
    assert running("node_id") == {name: {node} for name, node in nodes.items()}


def test_a_pool_grows_in_place_and_a_pod_that_ends_finishes_its_answers(
    service: RayService, nodes: dict[str, str]
) -> None:
    """A second replica is requested during an answer; then the first replica's pod stops."""
    before = running("replica_id")
    body = {"model": "skim-demo", "prompt": "the price of tea", "max_tokens": 60, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{service.url}/v1/completions", json=body, timeout=60) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        next(lines)
        new = service.add_node("target")
        service.apply(spec(**{"target.replicas": 2, "router.max_ongoing_requests": 7}))
        service.drain("target", nodes["target"])
        rest = list(lines)
    assert rest[-1] == "data: [DONE]"
    assert len(rest) > 50
    assert not any("error" in line for line in rest)
    deadline = time.monotonic() + 60
    while running("node_id")["target"] != {new}:
        assert time.monotonic() < deadline, f"the replica is still on {running('node_id')['target']}"
        time.sleep(0.5)
    after = running("replica_id")
    assert (after["router"], after["speculator"]) == (before["router"], before["speculator"])
    test_it_answers(service, nodes)
