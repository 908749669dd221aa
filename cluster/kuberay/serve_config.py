"""The Serve config of a RayService: the settings of the deployment as the pods read them."""

from collections.abc import Callable
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from cluster.config.schema import DeploymentConfig
from cluster.config.vllm_options import with_paths
from cluster.kuberay.pods import API_KEYS_PATH, TLS_PATH, Object
from cluster.serve.app import APP_NAME, logging_options, sizes_of
from skim_common.errors import SkimError

ROUTER_RESOURCE = "router_pool"
SIZES = dict.fromkeys(("replicas", "autoscaling", "max_ongoing_requests", "drain_timeout_s"), True)
NOT_ARGUMENTS: Any = {
    "kubernetes": True,
    "router": SIZES,
    "speculator": SIZES,
    "target": {**SIZES, "prefill": SIZES, "engine_options": {"api_key": True}},
}
"""Settings that are no arguments of the application. Sizes are in `deployments`: a change of arguments restarts every
replica (ray.serve._private.deploy_utils.get_app_code_version). The pods read the key from a Secret."""


def serve_config(config: DeploymentConfig) -> Object:
    """The Serve config file of `config` (ray.serve.schema.ServeDeploySchema). Raises SkimError."""
    return {
        "proxy_location": "EveryNode",
        "http_options": {"host": "0.0.0.0", "port": config.router.port},
        "applications": [
            {
                "name": APP_NAME,
                "route_prefix": "/",
                "import_path": "cluster.serve.app:serve_app",
                "args": _arguments(config),
                "deployments": [{"name": name, **sizes} for name, sizes in sizes_of(config).items()],
                "logging_config": logging_options(config.observability),
            }
        ],
    }


def _arguments(config: DeploymentConfig) -> Object:
    """The settings with the pods' paths and addresses, and without the token, which the pods read from a Secret."""
    settings = config.kubernetes
    if config.router.tls_cert:
        raise SkimError(
            "router.tls_cert: cannot be set on Kubernetes: let your ingress or gateway end TLS, and leave it out"
        )
    if config.router.api_keys_file and not settings.api_keys_secret:
        raise SkimError(
            "kubernetes.api_keys_secret: is not set, but router.api_keys_file is: put the file into a Secret as "
            "keys.yaml and set kubernetes.api_keys_secret to its name"
        )
    if config.channel.tls_ca and not settings.tls_secret:
        raise SkimError(
            "kubernetes.tls_secret: is not set, but channel.tls_ca is: put the three files into a Secret (tls.crt, "
            "tls.key, ca.crt) and set kubernetes.tls_secret to its name"
        )
    args: Object = config.model_dump(mode="json", exclude=NOT_ARGUMENTS)
    args["spans_machines"] = True
    args["router"] |= {
        "host": "0.0.0.0",
        "resources": {ROUTER_RESOURCE: 1, **config.router.resources},
        "api_keys_file": f"{API_KEYS_PATH}/keys.yaml" if settings.api_keys_secret else None,
    }
    files = {"tls_cert": "tls.crt", "tls_key": "tls.key", "tls_ca": "ca.crt"} if settings.tls_secret else {}
    args["channel"] |= {"token": None, **{name: f"{TLS_PATH}/{file}" for name, file in files.items()}}
    placed = _paths_of_pods(PurePosixPath(settings.models.mount_path))
    pools = {"speculator": args["speculator"], "target": args["target"], "target.prefill": args["target"]["prefill"]}
    for section, pool in pools.items():
        if pool is not None:
            pool["model"] = placed(section, "model", pool["model"])
            change = partial(placed, f"{section}.engine_options")
            pool["engine_options"] = with_paths(pool["engine_options"], change)
    return args


def _paths_of_pods(volume: PurePosixPath) -> Callable[[str, str, str], str]:
    """A function from a section, a setting in it and its path to that in the pods. A path that is not on the models'
    volume is looked up there by its name, so two of the same name would be one: SkimError.
    """
    sources: dict[str, tuple[str, str]] = {}

    def placed(section: str, setting: str, path: str) -> str:
        if not path.startswith("/"):  # a hub name, or one of vLLM's own templates
            return path
        place = path if PurePosixPath(path).is_relative_to(volume) else str(volume / PurePosixPath(path).name)
        other, source = sources.setdefault(place, (f"{section}.{setting}", path))
        if source != path:
            raise SkimError(
                f"{other} and {section}.{setting}: both would be {place} in the pods: give the folders different names"
            )
        return place

    return placed
