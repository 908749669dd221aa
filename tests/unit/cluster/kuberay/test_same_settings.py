"""What `skim serve` does with a file and what the pods do with its manifests is the same, for every setting."""

import pytest
import yaml
from pydantic import BaseModel
from ray.serve._private.application_state import override_deployment_info
from ray.serve.config import HTTPOptions
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig, ServeDeploySchema

from cluster.config.load import config_from_flags, load_config
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.serve_config import ROUTER_RESOURCE, serve_config
from cluster.serve.app import APP_NAME, CHANNEL_TOKEN, build_app, logging_options, plain, serve_app
from cluster.serve.deployment import http_options
from tests.unit.cluster.kuberay.conftest import ROOT
from tests.unit.cluster.kuberay.serve_overrides import infos

TOKEN = "a-token-of-the-draft-channel"
FILES = ("tls_cert", "tls_key", "tls_ca")
POOLS = ("speculator", "target", "target.prefill")
MODELS = {f"{pool}.model": f"/models/{pool}" for pool in ("speculator", "target")}

DIFFER = {
    "kubernetes": "only `skim manifests` reads it",
    "router.host": "a pod is reached at its own address",
    "router.tls_cert": "an ingress ends TLS",
    "router.tls_key": "an ingress ends TLS",
    "router.api_keys_file": "the file comes from a Secret",
    **{f"channel.{name}": "the files come from a Secret" for name in FILES},
}
"""Settings that are not the same in pods, with the reason. Besides, a router takes the resource of its pods' group
(ROUTER_RESOURCE), and the demo pair is in /models."""

ALONE = {
    "router.select_only": "with it no setting of a target is taken: examples/select-only.yaml",
    **{f"{pool}.{name}": "must be 1" for pool in ("speculator", "target.prefill")
       for name in ("pipeline_parallel", "nodes_per_replica")},
}  # fmt: skip
"""Settings that cannot be changed in the deployment of this test."""

WITHOUT_EFFECT = {"spans_machines"}
"""Settings of the machine that deploys, which reach no process of the deployment."""

VALUES = {
    "speculator.engine": "mock",
    "target.engine": "mock",
    "target.prefill.engine": "mock",
    **{f"{pool}.model": "/models/other" for pool in POOLS},
    **{f"{pool}.engine_options": {"max_model_len": 4096} for pool in POOLS},
    "target.nodes_per_replica": 2,
    "selection.keep_rate": 0.3,
    "selection.min_keep": 0.3,
    "selection.keep_by_role": {"tool": "always"},
    "router.speculative_prefill": "always",
    "observability.traces.endpoint": "http://collector:4318",
    "channel.token": TOKEN,
}
"""Of settings whose type does not say which value they take."""

WITH = {
    "target.topology": {},
    "target.prefill": {"target.topology": "split"},
    "target.pipeline_parallel": {"decode.method": "none"},
    "target.nodes_per_replica": {"decode.method": "none", "target.pipeline_parallel": 2},
    "observability.traces": {"observability.traces.endpoint": "http://c"},
    "selection.max_keep": {"selection.coverage": 0.5},
    "decode.method": {},
}
"""Settings that others need beside them, by the beginning of their names."""


def settings(schema, defs, name=""):
    """Every setting of a JSON schema: its name and its own schema."""
    kinds = [kind for kind in schema.get("anyOf", []) if kind.get("type") != "null"]
    schema = {**schema, **(kinds[0] if len(kinds) == 1 else {})}
    schema = {**schema, **defs.get(schema.get("$ref", "").rpartition("/")[2], {})}
    if "properties" not in schema:
        yield name, schema
    for field, inner in schema.get("properties", {}).items():
        yield from settings(inner, defs, f"{name}.{field}".lstrip("."))


SCHEMA = DeploymentConfig.model_json_schema()
ALL = {
    name: schema
    for name, schema in settings(SCHEMA, SCHEMA["$defs"])
    if not DIFFER.keys() & {name, name.partition(".")[0]} and name not in ALONE
}


def another(name, schema):
    """A value of the setting that is not its default."""
    if name in VALUES:
        return VALUES[name]
    default = schema.get("default")
    if kinds := schema.get("enum"):
        return next(kind for kind in kinds if kind != default)
    if schema["type"] in ("number", "integer"):
        tried = (2 * (default or 1), (default or 1) / 2) if schema["type"] == "number" else ((default or 0) + 2, 1)
        return next(x for x in tried if schema.get("minimum", 0) <= x <= schema.get("maximum", x) and x != default)
    if schema["type"] == "object":
        return {"x": 2 if schema["additionalProperties"].get("type") == "number" else "y"}
    return {"boolean": not default, "array": ["x"], "string": "x"}[schema["type"]]


def beside(name):
    scaling = name.rpartition(".autoscaling.")[0]
    needed = {f"{scaling}.autoscaling.max_replicas": 4} if scaling else {}
    if name.endswith("downscale_to_zero_delay_s"):
        needed[f"{scaling}.autoscaling.min_replicas"] = 0
    for begin, others in WITH.items():
        needed |= others if name.startswith(begin) else {}
    return needed


def flat(value, name=""):
    """Plain data as values by dotted names. Handles of deployments are their names."""
    if isinstance(value, DeploymentHandle):
        return {name: value.deployment_name}
    if isinstance(value, BaseModel):
        value = plain(value)
    if isinstance(value, dict):
        return {key: x for field, inner in value.items() for key, x in flat(inner, f"{name}.{field}").items()}
    if isinstance(value, list | tuple):
        return {name: [flat(inner) for inner in value]}
    return {name: value}


def arriving(deployments, http, logs):
    """All that Serve and the replicas get: the options and the arguments of each deployment, the proxy's, the logs'."""
    found = {"proxy": http.model_dump(exclude={"location"}), "logs": logs.model_dump()}
    for name, info in deployments.items():
        replica = info.replica_config
        actor = {**replica.ray_actor_options, "resources": dict(replica.ray_actor_options.get("resources") or {})}
        actor["resources"].pop(ROUTER_RESOURCE, None)
        found[name] = {
            "options": info.deployment_config.model_dump(exclude={"user_configured_option_names"}),
            "arguments": {"args": replica.init_args, **replica.init_kwargs},
            "actor": actor,
            "bundles": [replica.placement_group_bundles, replica.placement_group_bundle_label_selector],
        }
    return flat(found)


def served_here(config):
    placed = config.placed(on_gpus=config.kubernetes.gpus)
    http = HTTPOptions(**{**http_options(config.router), "host": "0.0.0.0"})
    return arriving(infos(build_app(placed), APP_NAME), http, LoggingConfig(**logging_options(config.observability)))


def served_in_pods(config):
    text = yaml.safe_dump(serve_config(config.placed(on_gpus=config.kubernetes.gpus)))
    served = ServeDeploySchema.model_validate(yaml.safe_load(text))
    [application] = served.applications
    deployments = override_deployment_info(infos(serve_app(application.args), application.name), application)
    logs = LoggingConfig(**application.logging_config.model_dump())
    return arriving(deployments, HTTPOptions(**served.http_options.model_dump()), logs)


def differing(one, other):
    pairs = {name: (one.get(name), other.get(name)) for name in one.keys() | other.keys()}
    return {name: (here, there) for name, (here, there) in pairs.items() if here != there}


@pytest.mark.parametrize("example", sorted(path.stem for path in (ROOT / "examples").glob("*.yaml")))
def test_an_example_is_served_alike(example, tmp_path):
    text = (ROOT / "examples" / f"{example}.yaml").read_text().replace("../demo_models", "/models")
    (tmp_path / "skim.yaml").write_text(text)
    config = load_config(tmp_path / "skim.yaml")
    assert differing(served_here(config), served_in_pods(config)) == {}


@pytest.mark.parametrize("name", ALL)
def test_each_setting_is_served_alike(name, monkeypatch):
    """And it does something. The token comes from a Secret, by the environment."""
    if name == "channel.token":
        monkeypatch.setenv(CHANNEL_TOKEN, TOKEN)
    plain = config_from_flags(None, {**MODELS, **beside(name)})
    config = config_from_flags(None, {**MODELS, **beside(name), name: another(name, ALL[name])})
    here = served_here(config)
    assert differing(here, served_in_pods(config)) == {}
    assert bool(differing(here, served_here(plain))) == (name not in WITHOUT_EFFECT)


def test_what_differs_would_be_found():
    """Control."""
    config = config_from_flags(None, MODELS)
    text = config_from_flags(None, {**MODELS, "router.max_ongoing_requests": 7, "selection.look_ahead": 3})
    assert differing(served_here(text), served_in_pods(config)).keys() == {
        ".router.options.max_ongoing_requests",
        ".router.options.user_config.max_ongoing_requests",
        ".router.arguments.selection.look_ahead",
    }
