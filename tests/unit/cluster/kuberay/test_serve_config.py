"""Serve reads the config in the manifests, and knows every name in it."""

import re

import pytest
import yaml
from ray.serve._private.deploy_utils import get_app_code_version
from ray.serve.schema import ServeDeploySchema

from cluster.config.load import config_from_flags, load_config
from cluster.serve.app import serve_app
from tests.unit.cluster.kuberay.conftest import ROOT
from tests.unit.cluster.kuberay.parts import DEMO, service_of
from tests.unit.cluster.kuberay.serve_overrides import deployed, unknown_names


def test_serve_takes_the_config(example):
    served = yaml.safe_load(service_of(example)["serveConfigV2"])
    schema = ServeDeploySchema.model_validate(served)
    assert (schema.http_options.host, schema.http_options.port) == ("0.0.0.0", example.router.port)
    [application] = schema.applications
    assert application.import_path == "cluster.serve.app:serve_app"
    assert deployed(application).keys() == {"router", *example.pools}


def test_a_speculator_alone_has_no_pods_for_a_target():
    service = service_of(load_config(ROOT / "examples" / "select-only.yaml"))
    groups = [group["groupName"] for group in service["rayClusterConfig"]["workerGroupSpecs"]]
    [application] = ServeDeploySchema.model_validate(yaml.safe_load(service["serveConfigV2"])).applications
    assert groups == sorted(deployed(application)) == ["router", "speculator"]
    speculator, target = serve_app(application.args)._bound_deployment.init_args
    assert speculator._bound_deployment.init_args[0].model == "/models/speculator"
    assert target is None


def test_serve_knows_every_name_of_its_config(example):
    assert unknown_names(yaml.safe_load(service_of(example)["serveConfigV2"])) == []


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ((), ".aplication"),
        (("http_options",), ".http_options.prot"),
        (("applications", 0), ".applications.0.import_pth"),
        (("applications", 0, "deployments", 1), ".applications.0.deployments.1.num_replica"),
        (("applications", 0, "deployments", 1, "autoscaling_config"), "speculator: max_replica"),
    ],
)
def test_a_typo_in_the_serve_config_is_found(path, name):
    served = yaml.safe_load(service_of(load_config(ROOT / "examples" / "multi-node.yaml"))["serveConfigV2"])
    inner = served
    for step in path:
        inner = inner[step]
    inner[re.split(r"[. ]", name)[-1]] = 1
    assert unknown_names(served) == [name]


def test_overrides_of_a_deployment_that_is_not_there_are_found():
    served = yaml.safe_load(service_of(load_config(DEMO))["serveConfigV2"])
    served["applications"][0]["deployments"][1]["name"] = "speculators"
    with pytest.raises(ValueError, match="'speculators' does not exist"):
        deployed(ServeDeploySchema.model_validate(served).applications[0])


SCALED = {"max_replicas": 4}


@pytest.mark.parametrize(
    ("changes", "in_place"),
    [
        ({"target.replicas": 3, "router.replicas": 2}, True),
        ({"target.max_ongoing_requests": 7, "router.drain_timeout_s": 9.0}, True),
        ({"router.max_ongoing_requests": 7}, True),
        ({"speculator.autoscaling": SCALED | {"max_replicas": 9, "min_replicas": 0, "upscale_delay_s": 5.0}}, True),
        ({"target.engine_options": {"max_model_len": 2048}}, False),
    ],
)
def test_a_change_of_sizes_starts_no_replica_anew(changes, in_place):
    """Serve replaces all replicas of an application if its code version has changed, else none."""

    def version(overrides):
        settings = {"speculator.autoscaling": SCALED, **overrides}
        served = yaml.safe_load(service_of(config_from_flags(DEMO, settings))["serveConfigV2"])
        return get_app_code_version(ServeDeploySchema.model_validate(served).applications[0])

    assert (version(changes) == version({})) == in_place
