"""What guards the pods: how many may be taken away at a time, and who may reach them."""

from urllib.parse import urlsplit

from cluster.config.schema import DeploymentConfig
from cluster.kuberay.pods import HEAD_PORTS, METRICS_PORT, Object, labels, metadata

DNS_PORTS = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]


def disruption_budgets(config: DeploymentConfig) -> list[Object]:
    """One pod of a pool at a time, when nodes are drained. The head, a single pod, has none: it comes back by Redis."""
    return [
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": metadata(config.kubernetes, pool, pool),
            "spec": {
                "maxUnavailable": 1,
                "unhealthyPodEvictionPolicy": "AlwaysAllow",  # one that still loads its model serves nobody
                "selector": {"matchLabels": labels(config.kubernetes, pool)},
            },
        }
        for pool in ("router", *config.pools)
    ]


def network_policies(config: DeploymentConfig) -> list[Object]:
    """Ray's pods are open to each other, to clients, the operator and Prometheus, and reach little else."""
    settings = config.kubernetes
    own = {"podSelector": {"matchLabels": labels(settings)}}
    clients = [{"podSelector": {}}, *(_namespace(name) for name in settings.network.client_namespaces)]
    metrics = [METRICS_PORT, HEAD_PORTS["as-metrics"], HEAD_PORTS["dash-metrics"]]
    policies = [
        _policy(
            config,
            "ray",
            {"matchLabels": labels(settings)},
            ingress=[
                {"from": [own]},
                {"from": clients, "ports": _tcp(config.router.port)},
                {"from": [_namespace(settings.network.operator_namespace)], "ports": _tcp(HEAD_PORTS["dashboard"])},
                {"from": [_namespace(settings.network.monitoring_namespace)], "ports": _tcp(*metrics)},
            ],
            egress=[{"to": [own]}, {"ports": DNS_PORTS}, *_own_redis(config), *_collector(config)],
        ),
        _policy(
            config,
            "head",
            {"matchLabels": labels(settings, "head")},
            # The autoscaler asks Kubernetes for pods; the API server has no label to select it by.
            egress=[{"ports": _tcp(443, 6443)}],
        ),
    ]
    if settings.batch:  # it reads from and writes to object stores
        policies.append(
            _policy(config, "batch", {"matchLabels": labels(settings, "batch")}, egress=[{"ports": _tcp(443)}])
        )
    return policies


def _own_redis(config: DeploymentConfig) -> list[Object]:
    """The way to a Redis that was there already; the one that is written carries our labels."""
    address = config.kubernetes.redis.address
    return [{"ports": _tcp(int(address.rpartition(":")[2]))}] if address else []


def _collector(config: DeploymentConfig) -> list[Object]:
    """The way to where traces go, wherever that is."""
    traces = config.observability.traces
    if traces is None:
        return []
    url = urlsplit(traces.endpoint)
    return [{"ports": _tcp(url.port or {"http": 80, "https": 443}[url.scheme])}]


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
