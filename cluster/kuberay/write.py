"""The files of `skim manifests`: the Ray objects, their monitors, and what protects the pods.

The metrics of the whole deployment are at the proxy of the head; every Ray node exports those of Ray and of Serve.
"""

from pathlib import Path
from urllib.parse import urlsplit

import yaml

from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import HEAD_PORTS, METRICS_PORT, Object, api_object, downloads, labels, metadata
from cluster.kuberay.service import batch_job, ray_service
from skim_common.errors import SkimError

MONITORING = Path(__file__).parents[1] / "monitoring"
RULES, DASHBOARD = MONITORING / "rules.yaml", MONITORING / "dashboard.json"

DNS_PORTS = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]

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
        api_object(
            "monitoring.coreos.com/v1/PodMonitor",
            metadata(settings, name, more_labels=settings.monitor_labels),
            {
                "selector": {"matchLabels": labels(settings, "head" if name == "head" else None)},
                "podMetricsEndpoints": [{"port": port, "relabelings": relabelings} for port in names],
            },
        )
        for name, names in ports.items()
    ]


def alert_rules(config: DeploymentConfig) -> Object:
    """A PrometheusRule of the Prometheus operator."""
    meta = metadata(config.kubernetes, more_labels=config.kubernetes.monitor_labels)
    return api_object(
        "monitoring.coreos.com/v1/PrometheusRule", meta, yaml.safe_load(RULES.read_text(encoding="utf-8"))
    )


def dashboard(config: DeploymentConfig) -> Object:
    """A ConfigMap that the dashboard sidecar of Grafana's Helm chart finds by its label."""
    meta = metadata(config.kubernetes, "dashboard", more_labels={"grafana_dashboard": "1"})
    content = {"skim.json": DASHBOARD.read_text(encoding="utf-8")}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": content}


def disruption_budgets(config: DeploymentConfig) -> list[Object]:
    """At most one ready pod of a pool at a time when nodes are drained. The head is alone and has none.

    Of a replica's pods, only the one with its actor has a Serve proxy; the others are never ready.
    """
    never_ready = {name: pool.most_replicas * (pool.nodes_per_replica - 1) for name, pool in config.pools.items()}
    return [
        api_object(
            "policy/v1/PodDisruptionBudget",
            metadata(config.kubernetes, pool, pool),
            {
                "maxUnavailable": 1 + missing,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that still loads its model serves no requests
                "selector": {"matchLabels": labels(config.kubernetes, pool)},
            },
        )
        for pool, missing in {"router": 0, **never_ready}.items()
    ]


def network_policies(config: DeploymentConfig) -> list[Object]:
    """Allow traffic among Ray's pods and from clients, the operator and Prometheus; limit outgoing traffic."""
    settings = config.kubernetes
    ours = {"podSelector": {"matchLabels": labels(settings)}}
    clients = [{"podSelector": {}}, *(_namespace(name) for name in settings.network.client_namespaces)]
    metrics = [config.router.port, METRICS_PORT, HEAD_PORTS["as-metrics"], HEAD_PORTS["dash-metrics"]]
    return [
        _policy(
            config,
            "ray",
            {"matchLabels": labels(settings)},
            ingress=[
                {"from": [ours]},
                {"from": clients, "ports": _tcp(config.router.port)},
                {"from": [_namespace(settings.network.operator_namespace)], "ports": _tcp(HEAD_PORTS["dashboard"])},
                {"from": [_namespace(settings.network.monitoring_namespace)], "ports": _tcp(*metrics)},
            ],
            egress=[{"to": [ours]}, {"ports": DNS_PORTS + _tcp(*_outside(config))}],
        ),
        _policy(
            config,
            "head",
            {"matchLabels": labels(settings, "head")},
            # The autoscaler calls the Kubernetes API server, which has no labels to select.
            egress=[{"ports": _tcp(443, 6443)}],
        ),
    ]


def _outside(config: DeploymentConfig) -> list[int]:
    """Ports of the services that the deployment names, at any address: the hub, the traces' collector, Redis, and the
    endpoint and object stores of batch jobs. A policy can name no hosts.
    """
    settings, traces, batch = config.kubernetes, config.observability.traces, config.kubernetes.batch
    urls = [
        traces and traces.endpoint,
        downloads(config, "router") and (settings.hub.endpoint or "https:"),
        settings.redis and "redis://" + settings.redis.address.rpartition("//")[2],
        batch and batch.endpoint,
        batch and "://" in batch.input + batch.output and "https:",
    ]
    parts = [urlsplit(url) for url in urls if url]
    return sorted({part.port or {"http": 80, "https": 443}[part.scheme] for part in parts})


def _policy(config: DeploymentConfig, name: str, selector: Object, **rules: list[Object]) -> Object:
    spec = {"podSelector": selector, "policyTypes": [kind.capitalize() for kind in rules], **rules}
    return api_object("networking.k8s.io/v1/NetworkPolicy", metadata(config.kubernetes, name), spec)


def _namespace(name: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _tcp(*ports: int) -> list[Object]:
    return [{"protocol": "TCP", "port": port} for port in ports]
