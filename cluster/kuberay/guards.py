"""Protection of the pods: disruption budgets and network policies."""

from urllib.parse import urlsplit

from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import HEAD_PORTS, METRICS_PORT, Object, downloads, labels, metadata

DNS_PORTS = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]


def disruption_budgets(config: DeploymentConfig) -> list[Object]:
    """At most one ready pod of a pool at a time when nodes are drained. The head is alone and has none."""
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(config.kubernetes, pool, pool),
            "spec": {
                "maxUnavailable": 1 + _never_ready(config, pool),
                "unhealthyPodEvictionPolicy": "AlwaysAllow",  # a pod that still loads its model serves no requests
                "selector": {"matchLabels": labels(config.kubernetes, pool)},
            },
        }
        for pool in ("router", *config.pools)
    ]


def _never_ready(config: DeploymentConfig, pool: str) -> int:
    """Pods that have no Serve proxy, so that they are never ready: all of a replica except the one with its actor."""
    settings = config.pools.get(pool)
    return settings.most_replicas * (settings.nodes_per_replica - 1) if settings else 0


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
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(config.kubernetes, name),
        "spec": {"podSelector": selector, "policyTypes": [kind.capitalize() for kind in rules], **rules},
    }


def _namespace(name: str) -> Object:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _tcp(*ports: int) -> list[Object]:
    return [{"protocol": "TCP", "port": port} for port in ports]
