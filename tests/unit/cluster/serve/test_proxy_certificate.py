"""HTTPS as Serve's proxy starts it: uvicorn on a socket, and a certificate that changes meanwhile."""

import asyncio
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn
from cryptography import x509
from ray.serve._private import http_util
from ray.serve.config import HTTPOptions

from cluster.config.load import config_from_flags
from cluster.serve.proxy_certificate import CALLBACK
from cluster.serve.tls import http_options, proxy_switches
from kv_transfer.channel_tls import Tls
from tests.reference.certificates import install, self_signed
from tests.unit.conftest import MODELS
from tests.unit.kv_transfer.channel_peer import until

HOST = "127.0.0.1"
ADDRESS = x509.IPAddress(ipaddress.ip_address(HOST))
DEMO = MODELS.parent / "examples" / "demo.yaml"


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    """uvicorn after a test is as it was before."""
    monkeypatch.setattr(uvicorn.config, "create_ssl_context", uvicorn.config.create_ssl_context)
    monkeypatch.delenv(CALLBACK, raising=False)


async def app(scope, receive, send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


def called_back(monkeypatch, tls: Tls) -> HTTPOptions:
    """Serve's options, after it has called what the switches of `skim serve` name."""
    router = config_from_flags(DEMO, {"router.tls_cert": tls.cert, "router.tls_key": tls.key}).router
    with proxy_switches(router, print) as switches:
        monkeypatch.setattr(http_util, CALLBACK, switches[CALLBACK])
        return http_util.configure_http_middlewares(HTTPOptions(**http_options(router)))


@contextmanager
def https(options: HTTPOptions) -> Iterator[int]:
    """uvicorn with the arguments of ray.serve._private.http_util.start_asgi_http_server. Gives its port."""
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        files = {"ssl_keyfile": options.ssl_keyfile, "ssl_certfile": options.ssl_certfile}
        config = uvicorn.Config(lambda: app, factory=True, lifespan="off", log_config=None, log_level=None, **files)
        server = uvicorn.Server(config)
        server.install_signal_handlers = lambda: None
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])))
        thread.start()
        until(lambda: server.started or not thread.is_alive())
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def shown(port: int) -> bytes:
    """The certificate that a new connection gets."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection((HOST, port)) as plain, context.wrap_socket(plain) as it:
        return it.getpeercert(binary_form=True)


def der(tls: Tls) -> bytes:
    return ssl.PEM_cert_to_DER_cert(Path(tls.cert).read_text())


@pytest.fixture
def pairs(tmp_path) -> tuple[Tls, Tls]:
    return self_signed(tmp_path / "first", ADDRESS), self_signed(tmp_path / "second", ADDRESS)


def test_new_connections_get_the_new_certificate_and_old_ones_go_on(monkeypatch, tmp_path, pairs):
    first, second = pairs
    options = called_back(monkeypatch, install(first, tmp_path / "live"))
    with https(options) as port, httpx.Client(verify=ssl.create_default_context(cafile=first.cert)) as running:
        url = f"https://{HOST}:{port}/"
        assert running.get(url).text == "ok"
        install(second, tmp_path / "live")
        assert shown(port) == der(second)
        assert httpx.get(url, verify=ssl.create_default_context(cafile=second.cert)).text == "ok"
        assert running.get(url).text == "ok"  # it would refuse the second certificate
        with pytest.raises(httpx.ConnectError, match="verify failed"):
            httpx.get(url, verify=ssl.create_default_context(cafile=first.cert))


def test_a_broken_certificate_changes_nothing(monkeypatch, tmp_path, pairs, caplog):
    first, second = pairs
    options = called_back(monkeypatch, install(first, tmp_path / "live"))
    with https(options) as port:
        Path(tmp_path, "live", "key.pem").write_text("nonsense")
        assert [shown(port) for _ in range(3)] == [der(first)] * 3
        [error] = [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert "the certificates of the endpoint stay as they were" in error.getMessage()
        install(second, tmp_path / "live")
        assert shown(port) == der(second)


def test_without_the_callback_the_certificate_stays(tmp_path, pairs):
    """The control: uvicorn does not look at the files again."""
    first, second = pairs
    live = install(first, tmp_path / "live")
    with https(HTTPOptions(ssl_certfile=live.cert, ssl_keyfile=live.key)) as port:
        install(second, tmp_path / "live")
        assert shown(port) == der(first)
