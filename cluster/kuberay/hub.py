"""Models of a hub on Kubernetes: what the pods that download them need. Pods of folders stay offline.

The pools read their models, and the router reads config and tokenizer. The head and batch jobs read no model.
"""

from typing import Any
from urllib.parse import urlsplit

from cluster.config.paths import hub_names
from cluster.config.schema import DeploymentConfig
from skim_common.models.source import is_hub_name

SERVING = ("router", "speculator", "target", "prefill")
"""Components whose pods hold replicas of the Serve application."""


def downloads(config: DeploymentConfig, component: str) -> bool:
    """Whether the pods of `component` download from a hub: a serving pod, if any pool names a repository of a hub."""
    return component in SERVING and any(
        is_hub_name(pool.model) or hub_names(pool.engine_options) for pool in config.pools.values()
    )


def hub_variables(config: DeploymentConfig) -> list[dict[str, Any]]:
    """Environment variables for `huggingface_hub`. The token is a reference to a Secret; without it, none is sent."""
    hub = config.kubernetes.hub
    token = {
        "name": hub.token_secret or config.kubernetes.secret,
        "key": hub.token_key,
        "optional": hub.token_secret is None,
    }
    env: list[dict[str, Any]] = [
        {"name": "HF_HOME", "value": hub.mount_path},
        {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": token}},
    ]
    return env + ([{"name": "HF_ENDPOINT", "value": hub.endpoint}] if hub.endpoint else [])


def cache(config: DeploymentConfig) -> tuple[dict[str, Any], dict[str, Any]]:
    """The volume of the cache: source and mount."""
    hub = config.kubernetes.hub
    shared: dict[str, Any] = {"persistentVolumeClaim": {"claimName": hub.claim}}
    return shared if hub.claim else {"emptyDir": {}}, {"mountPath": hub.mount_path}


def port_of(url: str) -> int:
    """The TCP port of an http or https URL."""
    parts = urlsplit(url)
    return parts.port or {"http": 80, "https": 443}[parts.scheme]
