"""Reads a Serve config as Ray's controller does, and finds unknown names, which Ray's schemas ignore."""

from ray.serve._private.application_state import override_deployment_info
from ray.serve._private.build_app import build_app
from ray.serve._private.config import DeploymentConfig, ReplicaConfig
from ray.serve._private.deployment_info import DeploymentInfo
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from cluster.serve.app import serve_app

FREE = {"args"}
"""Settings of the application, which Ray does not check."""


def unknown_names(served):
    """Dotted names that Ray's schemas do not know."""
    taken = ServeDeploySchema.model_validate(served).model_dump(mode="json", exclude_unset=True)
    return [*_dropped(served, taken, ""), *_unknown_scaling(served)]


def _dropped(given, taken, path):
    if isinstance(given, list):
        return [name for i, (one, two) in enumerate(zip(given, taken, strict=True)) for name in
                _dropped(one, two, f"{path}.{i}")]  # fmt: skip
    if not isinstance(given, dict):
        return []
    lost = [f"{path}.{name}" for name in given.keys() - taken.keys()]
    kept = given.keys() & taken.keys() - FREE
    return lost + [name for key in kept for name in _dropped(given[key], taken[key], f"{path}.{key}")]


def _unknown_scaling(served):
    """Unknown names in `autoscaling_config`, which Ray's schema accepts as any mapping."""
    for deployment in (d for application in served["applications"] for d in application["deployments"]):
        scaling = deployment.get("autoscaling_config", {})
        yield from (f"{deployment['name']}: {name}" for name in scaling.keys() - AutoscalingConfig.model_fields.keys())


def deployed(application):
    """DeploymentConfig by name: the application that the import path builds, with overrides applied by Ray's code.

    Raises ValueError for a deployment that does not exist.
    """
    built = infos(serve_app(application.args), application.name)
    return {name: info.deployment_config for name, info in override_deployment_info(built, application).items()}


def infos(app, name):
    """What Ray's controller gets of each deployment of `app`, by its name."""
    return {part.name: _as_sent(part) for part in build_app(app, name=name).deployments}


def _as_sent(part):
    sent = part._deployment_config.to_proto_bytes(), part._replica_config.to_proto_bytes()
    return DeploymentInfo(DeploymentConfig.from_proto_bytes(sent[0]), ReplicaConfig.from_proto_bytes(sent[1]), 0, "")
