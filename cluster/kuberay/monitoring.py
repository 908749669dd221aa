"""What Prometheus reads: every Ray node exports its pool's counters, and the head those of Ray itself."""

from cluster.config import DeploymentConfig
from cluster.kuberay.pods import Object, labels, metadata

NODE_LABELS = {"ray_io_cluster": "ray_io_cluster", "app_kubernetes_io_component": "component"}


def pod_monitors(config: DeploymentConfig) -> list[Object]:
    """PodMonitors of the Prometheus operator. Pods, not Services: a pool has no Service of its own."""
    settings = config.kubernetes
    ports = {"nodes": ("metrics",), "head": ("as-metrics", "dash-metrics")}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": {**metadata(settings, name), "labels": {**labels(settings), **settings.monitor_labels}},
            "spec": {
                "selector": {"matchLabels": labels(settings, "head" if name == "head" else None)},
                "podMetricsEndpoints": [{"port": port, "relabelings": _relabelings()} for port in found],
            },
        }
        for name, found in ports.items()
    ]


def _relabelings() -> list[Object]:
    return [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_{source}"], "targetLabel": target}
        for source, target in NODE_LABELS.items()
    ]
