"""The objects for Prometheus and Grafana: pod monitors, and the alert rules and dashboard of `cluster/monitoring`.

Every Ray node exports the metrics of its pool; the head also exports those of Ray itself.
"""

from pathlib import Path

import yaml

from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import Object, labels, metadata

MONITORING = Path(__file__).parents[1] / "monitoring"
RULES, DASHBOARD = MONITORING / "rules.yaml", MONITORING / "dashboard.json"

NODE_LABELS = {"ray_io_cluster": "ray_io_cluster", "app_kubernetes_io_component": "component"}


def pod_monitors(config: DeploymentConfig) -> list[Object]:
    """PodMonitors of the Prometheus operator. ServiceMonitors do not fit, because a pool has no Service."""
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


def alert_rules(config: DeploymentConfig) -> Object:
    """A PrometheusRule of the Prometheus operator."""
    settings = config.kubernetes
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {**metadata(settings), "labels": {**labels(settings), **settings.monitor_labels}},
        "spec": yaml.safe_load(RULES.read_text(encoding="utf-8")),
    }


def dashboard(config: DeploymentConfig) -> Object:
    """A ConfigMap that the dashboard sidecar of Grafana's Helm chart finds by its label."""
    found = metadata(config.kubernetes, "dashboard")
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**found, "labels": {**found["labels"], "grafana_dashboard": "1"}},
        "data": {"skim.json": DASHBOARD.read_text(encoding="utf-8")},
    }


def _relabelings() -> list[Object]:
    return [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_{source}"], "targetLabel": target}
        for source, target in NODE_LABELS.items()
    ]
