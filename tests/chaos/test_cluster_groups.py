"""Target replicas on two nodes each: placement, the death of a node, and a replica that waits for a node.

Five Ray nodes on this machine beside the head: the speculator's, and four for two target replicas. Mock engines: their
ranks do nothing, so what is tried here is the placement group, its end and its successor.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions
from ray.util import placement_group_table

from cluster.config.load import config_from_flags
from cluster.config.schema import DeploymentConfig
from cluster.serve.app import APP_NAME
from cluster.serve.deployment import apply, deployed
from cluster.serve.status import current_parts
from demo_models.ports import free_port
from skim_common.errors import SkimError
from tests.chaos.test_cluster_nodes import BODY, QUIET, Load
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.nightly

PART = {"num_cpus": 1, "resources": {"target_pool": 1}}


def config(**overrides: Any) -> DeploymentConfig:
    settings = {
        "speculator.engine": "mock",
        "target.engine": "mock",
        "speculator.engine_options": {},
        "target.engine_options": {"prefill_ms": 100.0, "decode_ms": 20.0},
        "target.tensor_parallel": 3,
        "target.pipeline_parallel": 2,
        "target.nodes_per_replica": 2,
        "target.replicas": 2,
        "router.resources": {"router_pool": 1},
        "router.speculative_prefill": "always",
        "selection.selector": "speculator",
        **{f"{part}.drain_timeout_s": 5.0 for part in ("speculator", "target", "router")},
        **overrides,
    }
    return config_from_flags(ROOT / "examples" / "demo.yaml", settings)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=2, resources={"router_pool": 1}, include_dashboard=False)
        cluster.add_node(num_cpus=2, resources={"speculator_pool": 1})
        for _ in range(4):
            cluster.add_node(**PART)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def url(cluster: Cluster) -> Iterator[str]:
    port = free_port()
    # All nodes are this machine: proxies of several would share the port, and one that died would have taken requests.
    ray.init(cluster.address, log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(port=port))
    ray.shutdown()
    with deployed(config(**{"router.port": port}), address=cluster.address, **QUIET) as url:
        yield url


def groups() -> dict[str, set[str]]:
    """The nodes of each placed replica of the target, by the replica's name."""
    table = placement_group_table().values()
    return {
        group["name"]: set(group["bundles_to_node_id"].values())
        for group in table
        if group["state"] == "CREATED" and group["name"].startswith(f"SERVE_REPLICA::{APP_NAME}#target#")
    }


def target_line() -> str:
    return next(part.line for part in current_parts() or [] if part.name == "target")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, (target_line(), groups())
        time.sleep(0.2)


def node_of_actor(name: str) -> str:
    actors = {actor["Name"]: actor for actor in ray._private.state.actors().values()}
    return str(actors[name]["Address"]["NodeID"])


def test_each_replica_has_two_nodes_of_its_own(url: str) -> None:
    first, second = groups().values()
    assert (len(first), len(second)) == (2, 2)
    assert not first & second
    assert httpx.post(f"{url}/v1/chat/completions", json={**BODY, "stream": False}, timeout=60).status_code == 200


def test_a_replica_loses_the_node_without_its_actor(url: str, cluster: Cluster) -> None:
    """The other replica serves meanwhile. The lost one waits, with the reason in the status, until there is a node."""
    before = groups()
    lost, kept = sorted(before)
    [other] = before[lost] - {node_of_actor(lost)}
    [node] = [node for node in cluster.list_all_nodes() if node.node_id == other]
    with Load(url) as load:
        load.go_on()
        cluster.remove_node(node, allow_graceful=False)
        wait_for(lambda: "a replica waits for nodes with" in target_line())
        load.go_on()
        assert target_line().endswith(
            "(1 running, 1 starting): a replica waits for nodes with 0.5 CPU, 2 target_pool in all"
        )
        assert set(groups()) == {kept}
        cluster.add_node(**PART)
        wait_for(lambda: target_line() == "target: healthy (2 running)")
        load.go_on()
    assert [error for streamed, error in load.failed if not streamed] == []
    after = groups()
    assert after.pop(kept) == before[kept]
    [again] = after.values()
    assert len(again) == 2
    assert other not in again


def test_too_few_nodes_are_found_before_a_start(url: str) -> None:
    port = {"router.port": int(url.rpartition(":")[2])}
    with pytest.raises(SkimError, match=r"offers 4 of the resource target_pool, but this deployment needs 6"):
        apply(config(**port, **{"target.nodes_per_replica": 3}), **QUIET)
    with pytest.raises(SkimError, match=r"one target replica needs 2 nodes .*, the first with 3 CPU.*, and 4 have the"):
        apply(config(**port, **{"target.cpus_per_replica": 3}), **QUIET)
