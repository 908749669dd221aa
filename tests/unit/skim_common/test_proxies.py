"""Which calls go directly although the environment names a proxy. The proxy of the tests notes what it is asked for."""

import ast
import asyncio
import os
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import grpc
import httpx
import pytest
from cryptography.x509 import DNSName
from pydantic import SecretStr
from ray._private.grpc_utils import init_grpc_channel

from cluster.batch.worker import Endpoint as BatchEndpoint
from cluster.batch.worker import check_endpoint
from cluster.commands.select import explained_by
from evals.run.endpoint import Endpoint as EvalEndpoint
from skim_common.errors import SkimError
from skim_common.proxies import DIRECT_GRPC, call_directly, client_options, is_loopback
from tests.reference.certificates import self_signed
from tests.reference.recording_proxy import proxy_variables, recording_proxy

ROOT = Path(__file__).parents[3]
PACKAGES = sorted(path.parent.name for path in ROOT.glob("*/__init__.py") if path.parent.name != "tests")


@pytest.fixture
def proxy(monkeypatch):
    """The requests that a proxy got which the environment names for every call."""
    with recording_proxy() as (url, asked):
        for name, value in proxy_variables(url).items():
            monkeypatch.setenv(name, value)
        monkeypatch.delenv("grpc_proxy", raising=False)
        yield asked


@contextmanager
def endpoint(host="127.0.0.1"):
    """A server that answers every GET with an empty object; gives its URL and the paths that it was asked for."""
    got = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            got.append(self.path)
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer((host, 0), Handler) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield f"http://{host}:{server.server_port}", got
        server.shutdown()


def explain(url):
    explained_by(url, "r1", "words", "no/model")


def batch(url):
    asyncio.run(check_endpoint(BatchEndpoint(url, SecretStr("none"), max_retries=0)))


def evaluate(url):
    one = EvalEndpoint(url, keep_rates=[0.1], look_ahead=1, max_tokens=1)
    asyncio.run(one.ask(None))  # type: ignore[arg-type]  # it asks for the models first


CLIENTS = pytest.mark.parametrize("call", [explain, batch, evaluate])


@CLIENTS
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost"])
def test_a_loopback_address_is_called_directly(proxy, call, host):
    with endpoint("127.0.0.1" if host == "localhost" else host) as (url, got):
        with suppress(Exception):  # the answer is an empty object
            call(url.replace("127.0.0.1", host))
        assert got
        assert proxy == []


@CLIENTS
def test_another_host_is_called_through_the_proxy(proxy, call):
    with pytest.raises(SkimError):
        call("http://skim.invalid:8000")
    assert proxy
    assert all("http://skim.invalid:8000/" in line for line in proxy)


@CLIENTS
def test_a_socks_proxy_that_cannot_be_used_does_no_harm(monkeypatch, call):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    with endpoint() as (url, got):
        with suppress(Exception):
            call(url)
        assert got


def test_the_command_line_calls_directly(proxy, skim, tmp_path):
    with endpoint() as (url, got):
        words = ("--prompt", __file__, "--target", "no/model", "--output", tmp_path / "page.html")
        ran = skim("explain", "--request", "r1", "--url", url, *words)
    assert got == ["/v1/requests/r1/selection"]
    assert (ran.code, proxy) == (2, [])  # the empty object is no explanation


def test_the_libraries_of_a_process_call_loopback_addresses_directly(proxy):
    with endpoint() as (url, got):
        with pytest.raises(OSError, match="502"):
            urllib.request.urlopen(url)
        assert httpx.get(url).status_code == 502
        assert (len(proxy), got) == (2, []), "the control"
        call_directly()
        assert httpx.get(url).status_code == 200
        urllib.request.urlopen(url).close()
        assert (len(proxy), len(got)) == (2, 2)
        assert httpx.get("http://skim.invalid").status_code == 502


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, "localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "corp.example, localhost"}, "corp.example,localhost,127.0.0.1,::1"),
        ({"NO_PROXY": "upper", "no_proxy": "lower"}, "lower,localhost,127.0.0.1,::1"),
        ({"no_proxy": "*"}, "*"),
    ],
)
def test_exceptions_of_the_user_stay(monkeypatch, before, after):
    for name in ("NO_PROXY", "no_proxy", *DIRECT_GRPC):
        monkeypatch.setenv(name, before.get(name, ""))
    for _ in range(2):
        call_directly()
        assert os.environ["NO_PROXY"] == os.environ["no_proxy"] == after


@pytest.mark.parametrize("direct", [True, False])
def test_calls_between_replicas_use_no_proxy(proxy, direct):
    """Serve's channels, from `init_grpc_channel`, which names no option for a proxy."""
    if direct:
        call_directly()
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with init_grpc_channel(f"127.0.0.1:{port}") as channel:
            ready = grpc.channel_ready_future(channel)
            if direct:
                ready.result(timeout=30)
            else:
                with pytest.raises(grpc.FutureTimeoutError):
                    ready.result(timeout=1)
    finally:
        server.stop(None)
    assert any(line.startswith(f"CONNECT 127.0.0.1:{port}") for line in proxy) is not direct


def test_a_private_certificate_is_still_read_from_the_environment(tmp_path, monkeypatch):
    certificate = self_signed(tmp_path / "own", DNSName("localhost")).cert
    assert "verify" not in client_options("http://127.0.0.1")
    counts = []
    for path in ("/dev/null", certificate):
        monkeypatch.setenv("SSL_CERT_FILE", str(path))
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))
        counts.append(client_options("https://127.0.0.1:8000")["verify"].cert_store_stats()["x509"])
    assert counts == [0, 1]


@pytest.mark.parametrize(
    ("url", "is_so"),
    [
        ("http://localhost:8000/v1", True),
        ("http://skim.localhost", True),
        ("https://127.8.8.8", True),
        ("http://[::1]:8000", True),
        ("http://0.0.0.0:8000", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example", False),
        ("http://notlocalhost", False),
        ("http://[::1", False),
        ("", False),
    ],
)
def test_what_a_loopback_address_is(url, is_so):
    assert is_loopback(url) is is_so
    assert bool(client_options(url)) is is_so


def clients(source):
    """Each call in this source that makes a client of httpx, httpx2 or OpenAI."""
    makes = ("httpx.get", "httpx.post", "httpx.stream", "httpx.request", "httpx.Client", "HttpxClient", "AsyncClient")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name, given = ast.unparse(node.func), {keyword.arg for keyword in node.keywords}
            if name.endswith(makes) or (name.endswith("OpenAI") and "http_client" not in given):
                yield node


@pytest.mark.parametrize("package", PACKAGES)
def test_every_http_client_of_the_product_asks_for_this_rule(package):
    found = []
    for file in sorted((ROOT / package).rglob("*.py")):
        for call in clients(file.read_text(encoding="utf-8")):
            text = ast.unparse(call)
            if "**client_options(" not in text and "trust_env=False" not in text:
                found.append(f"{file.relative_to(ROOT)}:{call.lineno}")
    assert found == []


def test_the_control_of_that_search():
    source = "httpx.get(a)\nAsyncOpenAI(key)\nAsyncOpenAI(http_client=h)\nx.httpx.Client()\ngrpc.channel()"
    assert [call.lineno for call in clients(source)] == [1, 2, 4]
