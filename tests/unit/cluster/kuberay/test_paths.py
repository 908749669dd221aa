"""No path of the machine that writes the manifests gets into them: it is mapped to the pods."""

import getpass
import pwd

import pytest
import yaml

from cluster.config.load import config_from_flags, load_config
from cluster.config.vllm_options import PATHS, REFUSED, SETTINGS
from cluster.kuberay.pods import downloads
from cluster.kuberay.service import ray_service
from cluster.kuberay.write import manifests
from skim_common.errors import SkimError
from tests.unit.cluster.config.test_path_table import SETTINGS_WITH_PATHS
from tests.unit.cluster.config.test_paths import nested, values
from tests.unit.cluster.kuberay.parts import DEMO, pods, service_of

OF_POOLS = [
    name for name in PATHS if name not in REFUSED.keys() | SETTINGS.keys() and name != "speculative_config.model"
]
FRONT = ("chat_template", "lora_modules.path", "tool_parser_plugin")


def config_with(pool, options):
    split = {"target.topology": "split", "target.prefill": {"engine_options": options}}
    settings = split if pool == "target.prefill" else {f"{pool}.engine_options": options}
    return config_from_flags(
        DEMO, {"kubernetes.models.mount_path": "/volume", "target.model": "/volume/big", **settings}
    )


def served(config):
    return yaml.safe_load(service_of(config)["serveConfigV2"])["applications"][0]["args"]


def pool_of(args, pool):
    return args["target"]["prefill"] if pool == "target.prefill" else args[pool]


@pytest.mark.parametrize("pool", ["target", "target.prefill", "speculator"])
@pytest.mark.parametrize("name", OF_POOLS)
def test_each_path_of_an_option_is_mapped(pool, name):
    if pool != "target" and name in FRONT:
        return  # refused when the deployment is read
    for path in ("/elsewhere/file", "sub/dir/file"):
        config = config_with(pool, nested(name, path))
        assert values(pool_of(served(config), pool)["engine_options"]) == {name: "/volume/file"}
    inside = nested(name, "/volume/deep/x")
    assert values(pool_of(served(config_with(pool, inside)), pool)["engine_options"]) == {name: "/volume/deep/x"}


@pytest.mark.parametrize("setting", sorted(SETTINGS_WITH_PATHS))
def test_each_path_of_a_setting_is_mapped_or_refused(setting):
    pairs = {"channel": ("tls_cert", "tls_key", "tls_ca"), "router": ("tls_cert", "tls_key")}
    section, _, last = setting.rpartition(".")
    names = pairs[section] if last.startswith("tls") else (last,)
    split = {"target.topology": "split"} if section == "target.prefill" else {}
    config = config_from_flags(DEMO, {**split, **{f"{section}.{name}": f"/elsewhere/{name}" for name in names}})
    if section.startswith(("target", "speculator")):
        assert "/elsewhere" not in service_of(config)["serveConfigV2"]
        return
    with pytest.raises(SkimError, match=rf"\b{section}\.({'|'.join(names)})\b.*(Secret|leave it out)"):
        ray_service(config)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("additional_config", {"a": ["/volume/x", "/tmp/y", "/elsewhere/z", 7]}),
        ("compilation_config", {"cache_dir": "/tmp/x"}),
        ("root_path", "/v0"),
        ("default_chat_template_kwargs", {"suffix": "/no_think"}),
        ("chat_template", "{{ messages }}"),
        ("chat_template", "template_chatml.jinja"),
        ("generation_config", "vllm"),
    ],
)
def test_what_is_no_path_to_read_stays(option, value):
    assert served(config_with("target", {option: value}))["target"]["engine_options"] == {option: value}


def test_two_files_of_one_name_are_refused():
    options = {"lora_modules": ["a=/x/adapter", '{"name": "b", "path": "/y/adapter"}']}
    with pytest.raises(SkimError, match=r"lora_modules\.path and .*lora_modules\.path: both would be /volume/adapter"):
        ray_service(config_with("target", options))
    assert served(config_with("target", {"lora_modules": ["a=/x/adapter", "b=/x/adapter"]}))


@pytest.mark.parametrize("name", [name for name in OF_POOLS if PATHS[name] == "model"])
def test_a_hub_name_in_any_option_is_downloaded(name):
    """Control: the same option with a folder."""
    for value, online in (("owner/name", True), ("/models/name", False)):
        config = config_from_flags(DEMO, {"target.engine_options": nested(name, value)})
        assert [downloads(config, part) for part in ("router", "speculator", "target")] == [online] * 3
        assert values(served(config)["target"]["engine_options"]) == {name: value}


def test_user_1000_needs_no_entry_in_the_image(monkeypatch):
    """torch names its cache after the user. Control: without the variable there is none."""

    def no_entry(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises((KeyError, OSError)):
        getpass.getuser()
    things = [thing for part in manifests(load_config(DEMO)).values() for thing in part]
    [autoscaler] = [t["spec"]["rayClusterConfig"]["autoscalerOptions"] for t in things if t["kind"] == "RayService"]
    containers = [pod["spec"]["containers"][0] for _, pod in pods(things)]
    assert len(containers) > 4
    for container in (*containers, autoscaler):
        env = {one["name"]: one.get("value") for one in container["env"]}
        monkeypatch.setenv("USER", env["USER"])
        assert getpass.getuser() == "skim"
        assert env["HOME"] in [mount["mountPath"] for mount in container["volumeMounts"]]
