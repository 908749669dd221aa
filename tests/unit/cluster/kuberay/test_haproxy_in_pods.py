"""Pods keep Serve's own proxy. The facts of Ray 2.60 on which that decision and its description stand."""

import inspect

import pytest
from ray.serve._private import constants, haproxy, http_util

from cluster.config.load import load_config
from cluster.kuberay.pods import AGENT_PORT, HEAD_PORTS, METRICS_PORT, WRITABLE
from cluster.serve.proxy.haproxy import ENABLE
from cluster.serve.proxy.pod_draining import CALLBACK, DRAINING_SWITCHES
from tests.unit.cluster.kuberay.parts import DEMO, pods

FILES = ("CONFIG_FILE_LOC", "SOCKET_PATH", "METRICS_SOCKET_PATH", "SERVER_STATE_FILE")
PORTS = (
    "RAY_SERVE_HAPROXY_STATS_PORT",
    "RAY_SERVE_HAPROXY_METRICS_PORT",
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT",
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT",
)


def test_no_pod_switches_it_on(objects):
    for _, template in pods(objects):
        names = {variable["name"] for variable in template["spec"]["containers"][0].get("env", [])}
        assert ENABLE not in names
    assert constants.RAY_SERVE_ENABLE_HA_PROXY is False, "Ray's default"


def test_it_would_not_send_clients_away_when_a_pod_ends():
    """The hook of a pod reaches Serve's proxy without the head. HAProxy drains by a call of Serve's controller only."""
    assert CALLBACK in DRAINING_SWITCHES
    assert CALLBACK in inspect.getsource(http_util)
    assert CALLBACK not in inspect.getsource(haproxy)
    assert "controller" not in inspect.getsource(haproxy.HAProxyManager.update_draining)


def test_its_files_are_where_a_pod_may_write():
    paths = [getattr(constants, f"RAY_SERVE_HAPROXY_{name}") for name in FILES]
    assert [path for path in paths if not path.startswith(tuple(f"{folder}/" for folder in WRITABLE.values()))] == []


def test_its_ports_are_free_in_a_pod():
    config = load_config(DEMO)
    ours = {config.router.port, config.channel.port, AGENT_PORT, METRICS_PORT, *HEAD_PORTS.values()}
    theirs = {getattr(constants, name) for name in PORTS}
    assert not ours & theirs
    for kind in ("HTTP", "GRPC"):
        least, most = (getattr(constants, f"RAY_SERVE_DIRECT_INGRESS_{end}_{kind}_PORT") for end in ("MIN", "MAX"))
        assert [port for port in ours if least <= port <= most] == []


@pytest.mark.parametrize("port", [8404, 9101])
def test_other_namespaces_could_not_reach_its_statistics(objects, port):
    """Ray binds them to every address."""
    assert port in {constants.RAY_SERVE_HAPROXY_STATS_PORT, constants.RAY_SERVE_HAPROXY_METRICS_PORT}
    policies = [thing["spec"] for thing in objects if thing["kind"] == "NetworkPolicy"]
    rules = [rule for policy in policies for rule in policy.get("ingress", []) if "ports" in rule]
    assert rules
    assert port not in {found["port"] for rule in rules for found in rule["ports"]}
