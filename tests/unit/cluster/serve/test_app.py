"""From a config to Serve's deployments: the resources of each replica, and the number of replicas."""

from mmap import PROT_READ, mmap
from pathlib import Path

import pytest
import ray
from ray.serve._private.autoscaling_state import DeploymentAutoscalingState
from ray.serve._private.common import DeploymentID
from ray.serve._private.deployment_info import DeploymentInfo

from cluster.config.load import config_from_settings, load_config
from cluster.serve.app import (
    APP_NAME,
    CHANNEL_TOKEN,
    SERVE_SWITCHES,
    build_app,
    logging_options,
    serve_app,
    sizes_of,
)
from cluster.serve.placement import KEEP_ALL_GPUS
from cluster.serve.pod_draining import CALLBACK
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

EXAMPLES = MODELS.parent / "examples"
TOKEN = "a token of sixteen or more letters"


def deployments(app):
    router = app._bound_deployment
    speculator, target = (bound._bound_deployment for bound in router.init_args)
    return router, speculator, target


def test_pools_that_scale():
    _, speculator, target = deployments(build_app(load_config(EXAMPLES / "multi-node.yaml")))
    scaling = target._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 6)
    assert (scaling.target_ongoing_requests, scaling.upscale_delay_s, scaling.downscale_delay_s) == (32, 20, 900)
    assert speculator.ray_actor_options["accelerator_type"] == "L40S"
    _, speculator, _ = deployments(build_app(load_config(EXAMPLES / "demo.yaml")))
    assert speculator._deployment_config.autoscaling_config is None


@pytest.mark.parametrize(("at_start", "after"), [({}, 3), ({"replicas": 2}, 2)])
def test_a_change_of_a_pools_bounds_leaves_it_at_its_size(at_start, after):
    """Ray itself keeps the size. If `replicas` is set, Ray goes back to that number at each change."""
    state = DeploymentAutoscalingState(DeploymentID("target", APP_NAME))

    def sized(now, most):
        pool = {"model": "/big", "autoscaling": {"max_replicas": most}, **at_start}
        _, _, target = deployments(build_app(config_from_settings({"speculator": {"model": "/small"}, "target": pool})))
        return state.register(DeploymentInfo(target._deployment_config, target._replica_config, 0, ""), now)

    assert sized(-1, most=4) == at_start.get("replicas", 1)
    assert sized(3, most=8) == after


def test_what_a_replica_asks_of_its_node():
    pools = {"speculator": {"model": "/small", "node_labels": {"zone": "a"}, "resources": {"fast_disk": 2}}}
    config = config_from_settings({**pools, "target": {"model": "/big"}, "router": {"resources": {"router_pool": 1}}})
    router, speculator, target = deployments(build_app(config))
    assert speculator.ray_actor_options["resources"] == {"fast_disk": 2, "speculator_pool": 1}
    assert speculator.ray_actor_options["label_selector"] == {"zone": "a"}
    assert router.ray_actor_options["resources"] == {"router_pool": 1}
    assert not target.ray_actor_options.keys() & {"label_selector", "accelerator_type"}


def test_the_app_is_built_from_plain_settings_too():
    """A Serve config file names an import path and arguments."""
    config = load_config(EXAMPLES / "multi-node.yaml")
    plain, built = (deployments(app) for app in (serve_app(config.model_dump(mode="json")), build_app(config)))
    for one, other in zip(plain, built, strict=True):
        assert (one.name, one.ray_actor_options) == (other.name, other.ray_actor_options)
        assert one._deployment_config == other._deployment_config


def test_the_token_comes_from_the_environment(monkeypatch):
    settings = load_config(EXAMPLES / "demo.yaml").model_dump(mode="json")
    monkeypatch.setenv(CHANNEL_TOKEN, TOKEN)
    _, speculator, target = deployments(serve_app(settings))
    assert speculator.init_args[1]["token"] == TOKEN
    assert target.init_args[0].options["draft_channel"]["token"] == TOKEN
    monkeypatch.delenv(CHANNEL_TOKEN)
    assert deployments(serve_app(settings))[1].init_args[1]["token"] is None


@pytest.mark.parametrize("engine", ["vllm", "mock"])
@pytest.mark.parametrize(("method", "ends_sessions"), [("remote", True), ("none", False)])
def test_sessions_are_kept_for_a_target_that_ends_them(engine, method, ends_sessions):
    pools = {"speculator": {"model": "/small"}, "target": {"model": "/big", "engine": engine}}
    settings = {**pools, "decode": {"method": method}}
    _, speculator, target = deployments(build_app(config_from_settings(settings)))
    assert (speculator.init_args[1] is not None) == ("draft_channel" in target.init_args[0].options) == ends_sessions


def test_wrong_settings_are_one_sentence():
    with pytest.raises(SkimError, match=r"^deployment settings: target\.replicas: should be greater"):
        serve_app({"speculator": {"model": "/small"}, "target": {"model": "/big", "replicas": 0}})


def test_logs():
    demo = load_config(EXAMPLES / "demo.yaml").observability
    assert (logging_options(demo)["log_level"], logging_options(demo)["encoding"]) == ("INFO", "TEXT")
    assert logging_options(load_config(EXAMPLES / "multi-node.yaml").observability)["encoding"] == "JSON"


def test_traces_reach_every_deployment():
    traces = {"endpoint": "http://collector:4318", "sample_ratio": 0.5}
    pools = {"speculator": {"model": "/small"}, "target": {"model": "/big", "topology": "split"}}
    told = config_from_settings({**pools, "observability": {"traces": traces}})
    for app in (build_app(told), serve_app(told.model_dump(mode="json"))):
        router, speculator, target = deployments(app)
        prefill = router.init_kwargs["prefill"]._bound_deployment
        for pool in (speculator, target, prefill):
            assert pool.init_args[0].traces == router.init_kwargs["traces"] == {**traces, "service_name": "skim"}
    router, speculator, target = deployments(build_app(config_from_settings(pools)))
    assert router.init_kwargs["traces"] is None
    assert all(pool.init_args[0].traces is None for pool in (speculator, target))


def test_only_what_changed_is_replaced():
    """A deployment's version is a hash of its arguments; the number of replicas is not part of it."""

    def versions(**target):
        settings = {"speculator": {"model": "/small"}, "target": {"model": "/big", **target}}
        return [part.version for part in deployments(build_app(config_from_settings(settings)))]

    assert versions() == versions(replicas=2)
    router, speculator, target = versions(engine_options={"max_model_len": 2048})
    assert [router, speculator] == versions()[:2]
    assert target not in (None, versions()[2])
    router, speculator, target = versions(engine_options={"api_key": ["k"]})
    assert router not in (None, versions()[0])
    assert [speculator, target] == versions()[1:]
    both = versions(engine_options={"reasoning_parser": "qwen3"})
    assert [same == now for same, now in zip(versions(), both, strict=True)] == [False, True, False]


def test_the_one_list_of_options_goes_where_each_is_read():
    """A key stays at the front; the halves of a split target have the target's options."""
    options = {"api_key": ["k"], "reasoning_parser": "qwen3", "max_model_len": 2048}
    target = {"model": "/big", "topology": "split", "engine_options": options}
    settings = {"speculator": {"model": "/small"}, "target": target, "model_aliases": ["b"]}
    config = config_from_settings({**settings, "served_model_name": "a"})
    router, speculator, decoding = deployments(build_app(config))
    prefilling = router.init_kwargs["prefill"]._bound_deployment
    assert router.init_kwargs["served_model_names"] == ["a", "b"]
    assert router.init_kwargs["vllm_options"] == {"api_key": ["k"], "reasoning_parser": "qwen3"}
    of_engine = {"reasoning_parser": "qwen3", "max_model_len": 2048}
    for half in (decoding, prefilling):
        assert half.init_args[0].options.items() >= of_engine.items()
        assert "api_key" not in half.init_args[0].options
    assert speculator.init_args[0].options == {}
    mock = {**settings, "target": {"model": "/big", "engine": "mock", "engine_options": options}}
    assert deployments(build_app(config_from_settings(mock)))[2].init_args[0].options["max_model_len"] == 2048
    assert config_from_settings(mock).target.options_of_engine == {"max_model_len": 2048}


def test_a_speculator_is_told_the_target_that_it_reads_for():
    """The replica compares the tokenizers: the machine that deploys may have neither model."""
    settings = {"speculator": {"model": "/small"}, "target": {"model": "/big"}}
    _, speculator, target = deployments(build_app(config_from_settings(settings)))
    assert speculator.init_kwargs["reads_for"] == "/big"
    assert "reads_for" not in target.init_kwargs


LARGE = {
    "model": "/big",
    "tensor_parallel": 6,
    "pipeline_parallel": 2,
    "nodes_per_replica": 2,
    "cpus_per_replica": 4,
    "accelerator_type": "H100",
    "env": {"NCCL_SOCKET_IFNAME": "eth0"},
}


def test_a_replica_on_several_nodes_is_a_placement_group():
    """One bundle for each rank. The ranks of a node fill one unit of the pool's resource, and no rank more fits."""
    settings = {"speculator": {"model": "/small"}, "target": {**LARGE, "node_labels": {"zone": "a"}}}
    config = config_from_settings({**settings, "decode": {"method": "none"}}).placed(on_gpus=True)
    _, speculator, target = deployments(build_app(config))
    first, *others = target._replica_config.placement_group_bundles
    assert (first.pop("CPU"), len(others)) == (4, 11)
    assert all(bundle == first for bundle in others)
    assert (first["GPU"], first["accelerator_type:H100"]) == (1, 0.001)
    assert 6 * first["target_pool"] <= 1 < 7 * first["target_pool"]
    assert target._replica_config.placement_group_strategy == "PACK"
    assert target._replica_config.placement_group_bundle_label_selector == [{"zone": "a"}] * 12
    actor = target.ray_actor_options
    assert (actor["num_cpus"], actor.get("num_gpus", 0), actor.get("resources", {})) == (4, 0, {})
    assert actor["runtime_env"]["env_vars"]["NCCL_SOCKET_IFNAME"] == "eth0"
    assert actor["runtime_env"]["env_vars"]["RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"] == "1"
    options = target.init_args[0].options
    assert (options["pipeline_parallel_size"], options["distributed_executor_backend"]) == (2, "ray")
    assert speculator._replica_config.placement_group_bundles is None


def test_ranks_on_one_node_need_no_placement_group():
    settings = {"speculator": {"model": "/small"}, "target": {**LARGE, "nodes_per_replica": 1}}
    config = config_from_settings({**settings, "decode": {"method": "none"}}).placed(on_gpus=True)
    _, _, target = deployments(build_app(config))
    assert target._replica_config.placement_group_bundles is None
    assert target.ray_actor_options["num_gpus"] == 12
    options = target.init_args[0].options
    assert options["pipeline_parallel_size"] == 2
    assert "distributed_executor_backend" not in options


def scaled(**scaling):
    settings = {"speculator": {"model": "/small"}, "target": {"model": "/big", "autoscaling": scaling}}
    return config_from_settings({**settings, "router": {"replicas": 2}})


def test_routers_share_the_room_of_an_autoscaled_pool():
    config = scaled(max_replicas=4, target_ongoing_requests=8)
    assert sizes_of(config)["router"]["user_config"]["headroom"] == {"speculator": 0, "target": 16}


def test_the_prefill_half_of_a_split_target_has_room_too():
    prefill = {"autoscaling": {"max_replicas": 6, "target_ongoing_requests": 8}}
    target = {"model": "/big", "topology": "split", "autoscaling": {"max_replicas": 2}, "prefill": prefill}
    split = config_from_settings({"speculator": {"model": "/small"}, "target": target})
    assert sizes_of(split)["router"]["user_config"]["headroom"] == {"speculator": 0, "target": 48}


@pytest.mark.parametrize("name", [*SERVE_SWITCHES, *KEEP_ALL_GPUS, CALLBACK])
def test_ray_reads_every_variable_that_it_is_given(name):
    """Settings of Ray's C++ part have no prefix there."""
    ray_folder = Path(ray.__file__).parent
    serves = (ray_folder / "serve/_private/constants.py").read_text()
    gpus = (ray_folder / "_private/accelerators/nvidia_gpu.py").read_text()
    if f'"{name}"' in serves + gpus:
        return
    with open(ray_folder / "_raylet.so", "rb") as file, mmap(file.fileno(), 0, prot=PROT_READ) as core:
        assert core.find(name.removeprefix("RAY_").encode()) >= 0
        assert core.find(b"no_such_setting_of_ray") < 0, "the control"
