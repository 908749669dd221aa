"""Pools on separate nodes grow, shrink, scale to zero, are upgraded and lose a node; every request gets an answer.

Three Ray nodes on this machine beside the head: the speculator's, and two for the target. Mock engines: what is tried
here is Ray's part and the router's.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import ray
from ray import serve
from ray.cluster_utils import Cluster
from ray.serve.config import HTTPOptions

from cluster.config.load import config_from_flags
from cluster.config.schema import DeploymentConfig
from cluster.serve.deployment import apply, deployed
from demo_models.ports import free_port
from tests.chaos.conftest import await_replicas, replicas
from tests.chaos.support.load import BODY, CLIENTS, Load
from tests.e2e.conftest import ROOT

pytestmark = pytest.mark.nightly

UPGRADE = {"target.engine_options": {"prefill_ms": 100.0, "decode_ms": 20.0}}
QUIET = {"progress": lambda line: None}


def config(**overrides: Any) -> DeploymentConfig:
    settings = {
        "speculator.engine": "mock",
        "target.engine": "mock",
        "speculator.engine_options": {},
        "target.engine_options": {"prefill_ms": 200.0, "decode_ms": 20.0},
        "router.resources": {"router_pool": 1},
        "router.speculative_prefill": "always",
        "selection.selector": "speculator",
        "router.select_timeout_s": 5.0,
        # Requests on a dead node never finish.
        **{f"{part}.drain_timeout_s": 5.0 for part in ("speculator", "target", "router")},
        **overrides,
    }
    return config_from_flags(ROOT / "examples" / "demo.yaml", settings)


@pytest.fixture(scope="module")
def nodes() -> Iterator[dict[str, Any]]:
    """Ray nodes by name; `address` is the cluster's."""
    cluster = Cluster()
    try:
        cluster.add_node(num_cpus=2, resources={"router_pool": 2}, include_dashboard=False)
        held = {"speculator": {"speculator_pool": 1}, "one": {"target_pool": 1}, "two": {"target_pool": 1}}
        found = {name: cluster.add_node(num_cpus=2, resources=resources) for name, resources in held.items()}
        cluster.wait_for_nodes()
        yield {"cluster": cluster, **found}
    finally:
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def url(nodes: dict[str, Any]) -> Iterator[str]:
    address, port = nodes["cluster"].address, free_port()
    # All nodes are this machine: proxies of several would share the port, and one that died would have taken requests.
    ray.init(address, log_to_driver=False)
    serve.start(proxy_location="HeadOnly", http_options=HTTPOptions(port=port))
    ray.shutdown()
    with deployed(config(**{"router.port": port}), address=address, **QUIET) as url:
        yield url


def scaled(url: str, replicas: int, **overrides: Any) -> None:
    """Deploy with this many target replicas and wait until they run."""
    apply(config(**{"router.port": int(url.rpartition(":")[2]), "target.replicas": replicas, **overrides}), **QUIET)


def node_of(name: str) -> str:
    """The node on which a named actor lives."""
    actors = {actor["Name"]: actor for actor in ray._private.state.actors().values()}
    return str(actors[name]["Address"]["NodeID"])


def test_the_pools_are_on_nodes_of_their_own(url: str, nodes: dict[str, Any]) -> None:
    [speculator], [target] = replicas("speculator"), replicas("target")
    assert node_of(speculator) == nodes["speculator"].node_id
    assert node_of(target) in (nodes["one"].node_id, nodes["two"].node_id)


def test_a_pool_grows_and_shrinks_under_load(url: str) -> None:
    with Load(url) as load:
        load.go_on()
        scaled(url, 2)
        await_replicas("target", 2)
        load.go_on()
        scaled(url, 1)
        await_replicas("target", 1)
        load.go_on()
    assert load.failed == []
    assert load.modes.keys() == {"speculative"}


def test_a_request_to_a_pool_at_zero_waits_for_its_replica(url: str) -> None:
    soon = {"downscale_delay_s": 0.5, "look_back_period_s": 1.0, "metrics_interval_s": 0.5}
    scaled(url, 1, **{"target.autoscaling": {"min_replicas": 0, **soon}})
    await_replicas("target", 0)
    answer = httpx.post(f"{url}/v1/chat/completions", json={**BODY, "stream": False}, timeout=120)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-skim-mode"] == "speculative"


def test_an_upgrade_under_load(url: str) -> None:
    """With two replicas, one answers while the other is replaced."""
    scaled(url, 2)
    await_replicas("target", 2)
    before = set(replicas("target"))
    with Load(url) as load:
        load.go_on()
        scaled(url, 2, **UPGRADE)
        load.go_on()
    assert load.failed == []
    await_replicas("target", 2)
    assert not before & set(replicas("target"))


def test_a_node_dies_under_load(url: str, nodes: dict[str, Any]) -> None:
    """Begun answers may end early; no other request may fail. Then the speculator's node dies: requests run dense."""
    scaled(url, 2, **UPGRADE)  # as the test before left it
    await_replicas("target", 2)
    with Load(url) as load:
        load.go_on()
        nodes["cluster"].remove_node(nodes["two"], allow_graceful=False)
        load.go_on()
    unheard = [error for streamed, error in load.failed if not streamed]
    assert unheard == []
    assert len(load.failed) <= CLIENTS
    with Load(url) as load:
        nodes["cluster"].remove_node(nodes["speculator"], allow_graceful=False)
        load.go_on()
    assert load.failed == []
    assert load.modes["dense"] > 0
