"""Pods that download models from a hub: what they may reach, where they store it, and what is pinned."""

import pytest
import yaml
from huggingface_hub import constants

from cluster.config.load import config_from_flags
from cluster.kuberay.write import manifests
from tests.unit.cluster.kuberay.parts import DEMO, pods
from tests.unit.conftest import reach

HUB = {"target.model": "owner/big"}
SERVING = ("router", "speculator", "target")


def containers(config):
    """The container of each pod by the name of its group, and the volumes of its pod."""
    objects = [thing for things in manifests(config).values() for thing in things]
    found = {name: template["spec"] for name, template in pods(objects)}
    return {name: (spec["containers"][0], spec["volumes"]) for name, spec in found.items()}


def variables(container):
    return {e["name"]: e["value"] if "value" in e else e["valueFrom"]["secretKeyRef"] for e in container["env"]}


@pytest.mark.parametrize(
    "named",
    [HUB, {"speculator.model": "owner/small@v1"}, {"target.engine_options": {"draft_model": "owner/drafter"}}],
)
def test_only_pods_with_replicas_download_and_only_models_of_a_hub(named):
    """Negative control: the same deployment with folders."""
    for settings, online in ((named, {f"RayService {name}" for name in SERVING}), ({}, set())):
        config = config_from_flags(DEMO, settings)
        found = containers(config)
        assert online < found.keys()
        for name, (container, volumes) in found.items():
            env = variables(container)
            assert env.get("HF_HUB_OFFLINE") == (None if name in online else "1")
            assert ("HF_HOME" in env, "HF_TOKEN" in env) == (name in online,) * 2
            assert ("hub-cache" in [volume["name"] for volume in volumes]) == (name in online)


@pytest.mark.parametrize(
    ("settings", "source"),
    [
        ({}, {"emptyDir": {}}),
        ({"claim": "cache"}, {"persistentVolumeClaim": {"claimName": "cache"}}),
    ],
)
def test_the_cache_of_the_hub_is_on_a_volume(settings, source):
    config = config_from_flags(DEMO, {**HUB, "kubernetes.hub": {"mount_path": "/cache", **settings}})
    container, volumes = containers(config)["RayService target"]
    assert next(volume for volume in volumes if volume["name"] == "hub-cache") == {"name": "hub-cache", **source}
    assert {"name": "hub-cache", "mountPath": "/cache"} in container["volumeMounts"]
    assert variables(container)["HF_HOME"] == "/cache"


def test_the_token_and_the_address_of_the_hub():
    def of_target(hub):
        config = config_from_flags(DEMO, {**HUB, "kubernetes.hub": hub})
        env = variables(containers(config)["RayService target"][0])
        return env["HF_TOKEN"], env.get("HF_ENDPOINT")

    optional = {"name": "skim-secrets", "key": "hf-token", "optional": True}
    assert of_target({}) == (optional, None)
    given = {"name": "hub", "key": "read", "optional": False}
    endpoint = "http://hub.mirrors:8080/models"
    assert of_target({"token_secret": "hub", "token_key": "read", "endpoint": endpoint}) == (given, endpoint)


def test_hub_names_are_pinned_where_their_commit_can_be_looked_up(skim, hub, monkeypatch, tmp_path):
    file = tmp_path / "skim.yaml"
    file.write_text("target: {model: demo/target}\nspeculator: {model: demo/speculator}\n")

    def written():
        ran = skim("manifests", file, "-o", tmp_path / "out")
        assert ran.code == 0
        served = yaml.safe_load((tmp_path / "out" / "rayservice.yaml").read_text())["spec"]["serveConfigV2"]
        args = yaml.safe_load(served)["applications"][0]["args"]
        return ran.out, args["target"]["model"], args["served_model_name"]

    out, model, name = written()
    assert (model, name) == (f"demo/target@{hub.commit('demo/target')}", "demo/target")
    assert "Not pinned" not in out
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "empty"))
    reach(monkeypatch, "http://127.0.0.1:9")
    out, model, name = written()
    assert (model, name) == ("demo/target", "demo/target")
    assert "Not pinned to a commit, so each replica takes the newest files when it starts: model demo/target: " in out
