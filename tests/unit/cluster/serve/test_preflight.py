"""The checks before a deployment starts, and the resources that it needs from a Ray cluster."""

import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.config.schema import DeploymentConfig
from cluster.serve.app import build_app
from cluster.serve.placement import needed_resources
from cluster.serve.preflight import (
    GIB,
    check_memory,
    check_models,
    check_port,
    fetch_weights,
    with_pinned_models,
)
from demo_models import ports
from demo_models.ports import free_port
from skim_common.errors import ModelError, SkimError
from tests.reference.tokenizers_by_kind import model_without_weights
from tests.unit.conftest import MODELS


def deployment(speculator=None, target=None, **other):
    pools = {
        "speculator": {"model": str(MODELS / "speculator"), **(speculator or {})},
        "target": {"model": str(MODELS / "target"), **(target or {})},
    }
    return DeploymentConfig.model_validate({**pools, **other})


def test_the_demo_pair_fits_together():
    assert check_models(deployment()) is None


def test_two_tokenizers_are_told(tmp_path):
    other = model_without_weights(tmp_path / "other", "byte_level")
    assert "two tokenizers" in check_models(deployment(target={"model": other}))


@pytest.mark.parametrize("pool", ["speculator", "target"])
def test_a_folder_that_is_not_there(pool, tmp_path):
    missing = {pool: {"model": str(tmp_path / "no")}}
    with pytest.raises(ModelError, match="does not exist"):
        check_models(deployment(**missing))
    # The pools' machines may have the folder. They make the same check.
    check_models(deployment(**missing, spans_machines=True))


def test_a_limit_past_the_models_positions():
    with pytest.raises(ModelError, match="max_model_len must be from 1 to 32768"):
        check_models(deployment(target={"engine_options": {"max_model_len": 40000}}))
    yarn = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 32768, "rope_theta": 10000.0}
    for overrides in ({"rope_parameters": yarn}, json.dumps({"rope_parameters": yarn})):
        check_models(deployment(target={"engine_options": {"max_model_len": 40000, "hf_overrides": overrides}}))
    with pytest.raises(ModelError, match=r"hf_overrides must be a mapping of fields of config\.json, not 5"):
        check_models(deployment(target={"engine_options": {"hf_overrides": 5}}))


def test_a_speculator_whose_attention_cannot_be_scored(tmp_path):
    folder = tmp_path / "windowed"
    shutil.copytree(MODELS / "speculator", folder)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"use_cache"', '"sliding_window": 64, "use_cache"'))
    with pytest.raises(ModelError, match="sliding-window"):
        check_models(deployment(speculator={"model": str(folder)}))


def test_models_of_a_hub_are_pinned_and_checked_before_their_weights_are_fetched(hub):
    asked = deployment(speculator={"model": "demo/speculator"}, target={"model": "demo/target@main"})
    config = with_pinned_models(asked)
    assert config.target.model == f"demo/target@{hub.commit('demo/target')}"
    check_models(config)
    check_models(config.model_copy(update={"spans_machines": True}))
    assert "model.safetensors" not in {file for _, file, _ in hub.downloads}

    lines = []
    mock = config.target.model_copy(update={"engine": "mock"})
    fetch_weights(config.with_pools({**config.pools, "target": mock}), lines.append)
    assert lines == [f"fetching {config.speculator.model}"]
    assert [name for name, file, _ in hub.downloads if file == "model.safetensors"] == ["demo/speculator"]


def test_a_wrong_pair_of_a_hub_costs_no_weights(hub, tmp_path):
    shutil.copytree(MODELS / "speculator", tmp_path / "windowed")
    config = tmp_path / "windowed" / "config.json"
    config.write_text(config.read_text().replace('"use_cache"', '"sliding_window": 64, "use_cache"'))
    hub.repositories["demo/windowed"] = tmp_path / "windowed"
    with pytest.raises(ModelError, match="model demo/windowed is not supported yet as a speculator: it has sliding"):
        check_models(deployment(speculator={"model": "demo/windowed"}, target={"model": "demo/target"}))
    assert "model.safetensors" not in {file for _, file, _ in hub.downloads}


def test_ports():
    free = free_port()
    check_port("127.0.0.1", free)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free))
        taken.listen()
        with pytest.raises(SkimError, match=f"cannot listen on 127.0.0.1:{free}"):
            check_port("127.0.0.1", free)
    with pytest.raises(SkimError, match=r"cannot listen on 203\.0\.113\.1"):
        check_port("203.0.113.1", free)
    with pytest.raises(SkimError, match="cannot listen on ::1: a Ray that Skim starts has IPv4 alone"):
        check_port("::1", free)


def test_no_outgoing_connection_gets_a_port_that_was_chosen():
    kernel_gives = Path("/proc/sys/net/ipv4/ip_local_port_range")
    if not kernel_gives.exists():
        pytest.skip("only Linux publishes the range of ports that it gives to outgoing connections")
    first, last = map(int, kernel_gives.read_text().split())
    assert not [port for port in (free_port() for _ in range(50)) if first <= port <= last]


def test_a_machine_without_a_free_port(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setattr(ports, "QUIET_PORTS", range(port, port + 1))
        with pytest.raises(SkimError, match=f"none of the ports {port} to {port} is free"):
            free_port()


@pytest.mark.parametrize(
    ("pools", "free", "fits"),
    [
        ({}, 10.0, False),
        ({}, 11.0, True),
        ({"target": {"replicas": 2}}, 11.0, False),
        ({"target": {"env": {"VLLM_CPU_KVCACHE_SPACE": "1"}}}, 8.0, True),
        ({"target": {"tensor_parallel": 2}}, 11.0, False),
        ({"target": {"pipeline_parallel": 2}, "decode": {"method": "none"}}, 11.0, False),
        ({"target": {"gpus_per_replica": 1}}, 6.0, True),
        ({"target": {"engine": "mock"}, "speculator": {"engine": "mock"}}, 0.0, True),
    ],
)
def test_memory(monkeypatch, pools, free, fits):
    """By default, a vLLM replica needs 4 GiB of cache and 1.2 GiB for its processes; a GPU pool needs no CPU memory.

    vLLM's variable is taken from the environment, as by `vllm serve`."""
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "1")
    assert deployment().target.environment == {"VLLM_CPU_KVCACHE_SPACE": "1"}
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4GB")
    with pytest.raises(SkimError, match="variable VLLM_CPU_KVCACHE_SPACE must be a whole number of GiB, not 4GB"):
        check_memory(deployment())
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE")
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=int(free * GIB)))
    if fits:
        check_memory(deployment(**pools))
    else:
        with pytest.raises(SkimError, match=rf"needs about \d+\.\d GiB of memory, but {free:.1f} GiB are free"):
            check_memory(deployment(**pools))


def test_needed_resources():
    config = deployment(
        {"replicas": 3, "cpus_per_replica": 0.5, "gpus_per_replica": 1},
        {"replicas": 2, "cpus_per_replica": 2, "gpus_per_replica": 4, "tensor_parallel": 4},
        router={"replicas": 2, "cpus": 1.5},
    )
    needed = {"CPU": 3 * 0.5 + 2 * 2 + 2 * 1.5, "GPU": 3 + 8, "speculator_pool": 3, "target_pool": 2}
    assert needed_resources(config) == needed
    assert "GPU" not in needed_resources(deployment())


def test_a_pool_that_scales_needs_less_at_the_start():
    scaling = {"min_replicas": 2, "max_replicas": 5}
    config = deployment({"autoscaling": scaling, "resources": {"fast_disk": 0.5}, "accelerator_type": "L4"})
    start, most = needed_resources(config), needed_resources(config, at_most=True)
    assert (start["speculator_pool"], start["fast_disk"], start["CPU"]) == (2, 1, 4)
    assert start["accelerator_type:L4"] == pytest.approx(0.002)
    assert (most["speculator_pool"], most["fast_disk"], most["CPU"]) == (5, 2.5, 7)


def test_the_pools_stand_on_resources_of_their_own():
    """A node can then be reserved for one pool."""
    router = build_app(deployment({"replicas": 3}, {"gpus_per_replica": 2, "env": {"A": "b"}}))._bound_deployment
    speculator, target = (app._bound_deployment for app in router.init_args)
    assert (router.name, speculator.name, target.name) == ("router", "speculator", "target")
    assert speculator.num_replicas == 3
    assert speculator.ray_actor_options["resources"] == {"speculator_pool": 1}
    assert target.ray_actor_options["resources"] == {"target_pool": 1}
    assert target.ray_actor_options["num_gpus"] == 2
    assert target.ray_actor_options["runtime_env"]["env_vars"] == {"A": "b"}
