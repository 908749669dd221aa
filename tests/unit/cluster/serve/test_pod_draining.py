"""The proxy of a pod that ends closes each connection with its answer, in what Serve runs its app in."""

import asyncio

import httpx
import pytest
from ray.serve._private import http_util
from ray.serve._private.proxy import HTTPProxy
from ray.serve.config import HTTPOptions

from cluster.serve.pod_draining import CALLBACK, DRAINING_FILE, DRAINING_SWITCHES


class Proxy:
    """In place of ray.serve._private.proxy.HTTPProxy."""

    draining = False

    def _is_draining(self) -> bool:
        return self.draining

    async def __call__(self, scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


@pytest.fixture
def proxy() -> Proxy:
    return Proxy()


@pytest.fixture
def served(monkeypatch, tmp_path, proxy):
    """What Serve makes of the proxy with the environment of a pod."""
    monkeypatch.setenv(DRAINING_FILE, str(tmp_path / "leaving"))
    monkeypatch.setattr(http_util, CALLBACK, DRAINING_SWITCHES[CALLBACK])
    return http_util._apply_middlewares(proxy, http_util.configure_http_middlewares(HTTPOptions()).middlewares)


def closes(app) -> bool:
    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://pod") as client:
            return await client.get("/")

    answer = asyncio.run(ask())
    assert answer.text == "ok"
    return answer.headers.get("connection") == "close"


def test_from_the_file_on_connections_are_closed(served, tmp_path):
    assert not closes(served)
    (tmp_path / "leaving").touch()
    assert closes(served)


def test_a_proxy_that_serve_drains_closes_them_too(served, proxy):
    assert not closes(served)
    proxy.draining = True
    assert closes(served)


def test_serves_proxy_says_whether_it_drains():
    assert callable(HTTPProxy._is_draining)
