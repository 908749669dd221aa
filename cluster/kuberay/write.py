"""All Kubernetes objects of a deployment, by file, and writing these files.

For Prometheus and Grafana they have pod monitors, and the alert rules and the dashboard of `cluster/monitoring`. The
proxy of the head answers for the whole deployment; every Ray node exports those of Ray and of Serve.
"""

from pathlib import Path

import yaml

from cluster.config.schema import DeploymentConfig
from cluster.kuberay.guards import disruption_budgets, network_policies
from cluster.kuberay.pods import Object, labels, metadata
from cluster.kuberay.service import batch_job, ray_service
from skim_common.errors import SkimError

MONITORING = Path(__file__).parents[1] / "monitoring"
RULES, DASHBOARD = MONITORING / "rules.yaml", MONITORING / "dashboard.json"

HEADER = "# Written by `skim manifests`: change the deployment file, not this one.\n"


class _Readable(yaml.SafeDumper):
    """Writes multi-line text as a block and uses no anchors, so that diffs are readable."""

    def ignore_aliases(self, data: object) -> bool:
        return True


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def manifests(config: DeploymentConfig) -> dict[str, list[Object]]:
    """Objects by file name. `kubectl apply -f DIR` applies all except jobs/, which a user starts one by one."""
    batch = config.kubernetes.batch
    files = {
        "network-policies.yaml": network_policies(config),
        "disruption-budgets.yaml": disruption_budgets(config),
        "pod-monitors.yaml": pod_monitors(config),
        "alert-rules.yaml": [alert_rules(config)],
        "dashboard.yaml": [dashboard(config)],
        "rayservice.yaml": [ray_service(config)],
        "jobs/batch.yaml": [batch_job(config, batch)] if batch else [],
    }
    return {name: objects for name, objects in files.items() if objects}


def write_manifests(config: DeploymentConfig, folder: Path) -> list[Path]:
    """Write all files under `folder`, and delete files of an earlier run that are now unused. Raises SkimError."""
    written = {folder / name: manifest_yaml(objects) for name, objects in manifests(config).items()}
    try:
        for file, text in written.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        for file in {*folder.glob("*.yaml"), *folder.glob("jobs/*.yaml")} - written.keys():
            if file.read_text(encoding="utf-8").startswith(HEADER):
                file.unlink()
    except OSError as error:
        raise SkimError(f"cannot write to {error.filename or folder}: {error.strerror}") from None
    return list(written)


def manifest_yaml(objects: list[Object]) -> str:
    return HEADER + yaml.dump_all(objects, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=120)


def pod_monitors(config: DeploymentConfig) -> list[Object]:
    """PodMonitors of the Prometheus operator. ServiceMonitors do not fit, because a pool has no Service."""
    settings = config.kubernetes
    targets = {"ray_io_cluster": "ray_io_cluster", "app_kubernetes_io_component": "component"}
    relabelings = [
        {"sourceLabels": [f"__meta_kubernetes_pod_label_{label}"], "targetLabel": target}
        for label, target in targets.items()
    ]
    ports = {"nodes": ("metrics",), "head": ("serve", "as-metrics", "dash-metrics")}
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": metadata(settings, name, more_labels=settings.monitor_labels),
            "spec": {
                "selector": {"matchLabels": labels(settings, "head" if name == "head" else None)},
                "podMetricsEndpoints": [{"port": port, "relabelings": relabelings} for port in names],
            },
        }
        for name, names in ports.items()
    ]


def alert_rules(config: DeploymentConfig) -> Object:
    """A PrometheusRule of the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": metadata(config.kubernetes, more_labels=config.kubernetes.monitor_labels),
        "spec": yaml.safe_load(RULES.read_text(encoding="utf-8")),
    }


def dashboard(config: DeploymentConfig) -> Object:
    """A ConfigMap that the dashboard sidecar of Grafana's Helm chart finds by its label."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(config.kubernetes, "dashboard", more_labels={"grafana_dashboard": "1"}),
        "data": {"skim.json": DASHBOARD.read_text(encoding="utf-8")},
    }
