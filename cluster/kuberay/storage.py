"""The volume claims for models."""

from cluster.config.kubernetes import HubConfig, KubernetesConfig, ModelVolumeConfig
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.hub import downloads
from cluster.kuberay.pods import Object, metadata


def model_claims(config: DeploymentConfig) -> list[Object]:
    """The claims for model folders and for the hub's cache, where the config gives their sizes.

    Pods on many nodes mount them: folders read-only, the cache for writing.
    """
    settings = config.kubernetes
    volumes: list[ModelVolumeConfig | HubConfig] = [settings.models]
    if downloads(config, "router"):
        volumes.append(settings.hub)
    return [_claim(settings, volume) for volume in volumes if volume.claim and volume.size]


def _claim(settings: KubernetesConfig, volume: ModelVolumeConfig | HubConfig) -> Object:
    spec: Object = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": volume.size}}}
    if volume.storage_class:
        spec["storageClassName"] = volume.storage_class
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**metadata(settings), "name": volume.claim},
        "spec": spec,
    }
