"""Objects that keep state: Redis for Ray's cluster state, and the volume claims for models."""

from cluster.config.kubernetes import HubConfig, KubernetesConfig, ModelVolumeConfig, RedisConfig
from cluster.config.schema import DeploymentConfig
from cluster.kuberay.hub import downloads
from cluster.kuberay.pods import CONTAINER_SECURITY, POD_SECURITY, Object, labels, metadata, resources

REDIS_PORT = 6379
# The password comes from an environment variable, so that no manifest contains it.
START_REDIS = 'exec redis-server --dir /data --appendonly yes --requirepass "$REDIS_PASSWORD"'


def redis_password(settings: KubernetesConfig, wanted: RedisConfig) -> Object:
    """A secretKeyRef."""
    return {"name": wanted.password_secret or settings.secret, "key": wanted.password_key}


def redis(config: DeploymentConfig) -> list[Object]:
    """A Redis of one pod with a volume, and its Service; none without `redis`, or for one that exists."""
    settings = config.kubernetes
    wanted = settings.redis
    if wanted is None or wanted.address:
        return []
    selector = labels(settings, "redis")
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata(settings, "redis", "redis"),
            "spec": {
                "selector": selector,
                "ports": [{"name": "redis", "port": REDIS_PORT, "targetPort": "redis"}],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": metadata(settings, "redis", "redis"),
            "spec": {
                "serviceName": f"{settings.name}-redis",
                "replicas": 1,
                "selector": {"matchLabels": selector},
                "template": {"metadata": {"labels": selector}, "spec": _redis_pod(settings, wanted)},
                "volumeClaimTemplates": [
                    {
                        "metadata": {"name": "data"},
                        "spec": {
                            "accessModes": ["ReadWriteOnce"],
                            "resources": {"requests": {"storage": wanted.size}},
                        },
                    }
                ],
            },
        },
    ]


def _redis_pod(settings: KubernetesConfig, wanted: RedisConfig) -> Object:
    password = {"secretKeyRef": redis_password(settings, wanted)}
    answers = {"exec": {"command": ["sh", "-c", 'REDISCLI_AUTH="$REDIS_PASSWORD" redis-cli ping']}}
    return {
        "automountServiceAccountToken": False,
        "securityContext": POD_SECURITY,
        "containers": [
            {
                "name": "redis",
                "image": wanted.image,
                "command": ["sh", "-c", START_REDIS],
                "env": [{"name": "REDIS_PASSWORD", "valueFrom": password}],
                "ports": [{"name": "redis", "containerPort": REDIS_PORT}],
                "resources": resources("500m", "1Gi"),
                "securityContext": CONTAINER_SECURITY,
                "readinessProbe": {**answers, "periodSeconds": 5},
                "livenessProbe": {**answers, "periodSeconds": 10, "failureThreshold": 6},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }
        ],
    }


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
