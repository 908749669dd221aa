"""A real target whose two ranks are Ray actors on two nodes, as vLLM's Ray executor places them.

vLLM has no Ray executor on CPU. `tests/reference/ray_on_cpu` removes this refusal; the ranks then talk over gloo.
"""

import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import ActorDiedError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.multi_node import fetch_on_nodes, nodes_of
from actors.target import TargetActor
from cluster.config.load import config_from_settings
from cluster.serve.app import build_app
from kv_transfer.codec import decode, encode
from kv_transfer.draft_channel import DraftServer
from kv_transfer.messages import ACCEPTED, GenerateOutput, GenerateRequest, SessionHandle
from kv_transfer.options import DecodeOptions
from skim_common.errors import ModelError
from speculator_service.drafting import DraftService
from tests.e2e.conftest import ROOT
from tests.engine.target_service.vllm_backend.cases import (
    GREEDY,
    TOLERANCE,
    build_target,
    dense_prompt,
    engine_options,
    kept_prompt,
)
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.model_drafter import ModelDrafter

pytestmark = pytest.mark.nightly

NETWORK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_IB_HCA": "mlx5_0"}


TEMPERATURES = (0.0, 0.3)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT / 'tests' / 'reference' / 'ray_on_cpu'}:{ROOT}")
        patch.setenv("HF_HUB_OFFLINE", "1")
        cluster = Cluster()
        try:
            cluster.add_node(num_cpus=1, num_gpus=0, include_dashboard=False)
            for _ in range(2):
                cluster.add_node(num_cpus=1, num_gpus=1, resources={"target_pool": 1, "spare": 1})
            cluster.wait_for_nodes()
            ray.init(cluster.address, log_to_driver=False)
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_target(tmp_path_factory.mktemp("qwen2"), "qwen2")


@pytest.fixture(scope="module", params=["tensor_parallel", "pipeline_parallel"])
def replica(request: pytest.FixtureRequest, cluster: Cluster, model: str) -> Iterator[Any]:
    """The target's replica, started with the options that Serve gets."""
    target = {"model": model, request.param: 2, "nodes_per_replica": 2, "gpus_per_replica": 2, "start_probe": "off"}
    env = {**NETWORK, "VLLM_CPU_KVCACHE_SPACE": "1"}
    drafts = request.param == "tensor_parallel"
    settings = {
        "speculator": {"model": model, "engine": "mock"},
        "target": {**target, "env": env, "engine_options": engine_options("cpu")},
        # A long deadline for a busy machine, because this drafter is as slow as its target.
        **({"channel": {"deadline_ms": 5000.0}} if drafts else {"decode": {"method": "none"}}),
    }
    deployment = build_app(config_from_settings(settings))._bound_deployment.init_args[1]._bound_deployment
    group = placement_group(deployment._replica_config.placement_group_bundles, strategy="PACK")
    ray.get(group.ready(), timeout=60)
    place = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
    actor = ray.remote(TargetActor).options(scheduling_strategy=place, **deployment.ray_actor_options)
    yield actor.remote(*deployment.init_args, **deployment.init_kwargs)
    remove_placement_group(group)


async def answers(replica: Any, request: GenerateRequest) -> AsyncIterator[GenerateOutput]:
    async for reference in replica.generate.options(num_returns="streaming").remote(encode(request)):
        message = await reference
        if message != ACCEPTED:
            yield decode(message, GenerateOutput)


def ranks() -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if "RayWorkerProc" in " ".join(_command(process))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


async def test_ranks_on_two_nodes_are_the_oracles(replica: Any, model: str) -> None:
    oracle = GenerationOracle(model)
    for index, prompt in enumerate((kept_prompt(900, 300, seed=1), dense_prompt(200, seed=2))):
        outputs = [o async for o in answers(replica, GenerateRequest(f"r-{index}", prompt, GREEDY))]
        tokens, logprobs, _ = joined(outputs)
        assert len(tokens) == 64
        assert oracle.wrong_tokens(prompt, tokens) == 0
        assert oracle.largest_difference(prompt, tokens, logprobs) <= TOLERANCE


@pytest.fixture(scope="module")
async def address(model: str) -> AsyncIterator[str]:
    """The draft channel of a drafter that is the target itself, with a session for each temperature."""
    service = DraftService(ModelDrafter(model))
    server = DraftServer(service.handle, "127.0.0.1")
    address = f"127.0.0.1:{await server.start()}"
    for temperature in TEMPERATURES:
        session = SessionHandle(address, f"session-{temperature}")
        service.begin(replace(kept_prompt(300, 50), session=session), "kept", None)
    yield address
    await server.stop()
    await service.close()


@pytest.mark.parametrize("replica", ["tensor_parallel"], indirect=True)
@pytest.mark.parametrize("temperature", TEMPERATURES)
async def test_both_ranks_verify_remote_drafts(replica: Any, model: str, address: str, temperature: float) -> None:
    """With a temperature, the distributions of the drafts travel from the first rank to the other node."""
    prompt = replace(kept_prompt(300, 50), session=SessionHandle(address, f"session-{temperature}"))
    sampling = {**GREEDY, "temperature": temperature, "seed": 0}
    before = await replica.stats.remote()
    request = GenerateRequest(f"drafted-{temperature}", prompt, sampling, decode=DecodeOptions(adaptive=False))
    tokens, logprobs, _ = joined([o async for o in answers(replica, request)])
    after = await replica.stats.remote()
    assert len(tokens) == 64
    assert GenerationOracle(model).largest_difference(prompt, tokens, logprobs) <= TOLERANCE
    assert after["accepted"] - before["accepted"] > 0.8 * (after["drafts"] - before["drafts"]) > 20


async def test_hub_names_are_fetched_on_each_node(cluster: Cluster) -> None:
    """Here the nodes are offline. Each download is a task in a bundle of the group."""
    group = placement_group([{"spare": 1}] * 2, strategy="PACK")
    ray.get(group.ready(), timeout=60)
    assert len(set(nodes_of(group).values())) == 2
    with pytest.raises(ModelError, match="nobody/nothing"):
        await fetch_on_nodes(group, ["nobody/nothing"])
    remove_placement_group(group)


def test_the_network_settings_reach_every_rank(replica: Any) -> None:
    ray.get(replica.info.remote())
    found = [process.environ() for process in ranks()]
    assert len(found) == 2
    assert all(environment.items() >= NETWORK.items() for environment in found)
    nodes = {
        actor["Address"]["NodeID"]
        for actor in ray._private.state.actors().values()
        if "RayWorkerProc" in actor["ActorClassName"]
    }
    assert len(nodes) == 2


def test_the_death_of_a_rank_ends_the_replica(replica: Any) -> None:
    """Also of the rank on the other node. Serve then starts another replica."""
    ray.get(replica.info.remote())
    ranks()[-1].kill()
    with pytest.raises(ActorDiedError):
        wait_for(lambda: ray.get(replica.info.remote()) is None)
    wait_for(lambda: not ranks())


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)
