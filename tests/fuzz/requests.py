"""Requests to every route of the router's app over mock engines: by its schema, nearly right ones, and large ones."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import httpx
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from tests.unit.router.bodies import SCHEMAS, bodies, large_bodies

HANG_S = 60.0
SETTINGS: dict[str, Any] = {
    "deadline": None,
    "database": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.generate],
}
_NO_HEADERS = {"content-length", "transfer-encoding", "connection", "host", "expect"}
"""The client of a request sets them."""


class Faults:
    """The answers of a run. statuses: how often each came. found: what must not come."""

    def __init__(self) -> None:
        self.statuses: dict[int, int] = {}
        self.found: list[str] = []

    async def send(self, client: httpx.AsyncClient, method: str, url: str, **request: Any) -> None:
        """Send one request; note an answer of 500 or more, an exception, or no answer in `HANG_S`."""
        try:
            async with asyncio.timeout(HANG_S):
                response = await client.request(method, url, **request)
        except (httpx.InvalidURL, httpx.LocalProtocolError, UnicodeError, ValueError):
            return  # the client cannot send it
        except Exception as error:
            self.note(f"{method} {url} {request!r:.2000}: {error!r}")
            return
        self.statuses[response.status_code] = self.statuses.get(response.status_code, 0) + 1
        if response.status_code >= 500:
            self.note(f"{method} {url} {request!r:.2000}: {response.status_code} {response.text:.500}")

    def note(self, fault: str) -> None:
        """Keep a fault and print it now: a run may be stopped."""
        self.found.append(fault)
        print(f"FAULT {fault}", flush=True)


def run(served: SimpleNamespace, loop: asyncio.AbstractEventLoop, faults: Faults, count: int, number: int) -> None:
    """Send about `count` requests: half by the app's OpenAPI schema, a quarter nearly right, a quarter large ones.
    number: the seed."""
    schema = schemathesis.openapi.from_dict(served.app.openapi())
    operations = [found.ok() for found in schema.get_all_operations()]
    for operation in operations:

        def by_schema(case: schemathesis.Case) -> None:
            told = case.as_transport_kwargs(base_url="http://router")
            request = {name: told[name] for name in ("params", "cookies", "json", "data") if told.get(name) is not None}
            if isinstance(request.get("json"), schemathesis.core.NotSet):
                del request["json"]
            if isinstance(request.get("data"), bytes | str):
                request["content"] = request.pop("data")
            headers = {k: v for k, v in dict(told.get("headers") or {}).items() if k.lower() not in _NO_HEADERS}
            loop.run_until_complete(faults.send(served.client, told["method"], told["url"], headers=headers, **request))

        _draw(operation.as_strategy(), by_schema, max(1, count // 2 // len(operations)), number)
    for path in SCHEMAS:

        def nearly_right(body: bytes, path: str = path) -> None:
            headers = {"content-type": "application/json"}
            loop.run_until_complete(faults.send(served.client, "POST", path, content=body, headers=headers))

        for strategy in (bodies(path), large_bodies(path)):
            _draw(strategy, nearly_right, max(1, count // 4 // len(SCHEMAS)), number)


def _draw(strategy: st.SearchStrategy[Any], send: Callable[[Any], None], count: int, number: int) -> None:
    @seed(number)
    @settings(max_examples=count, **SETTINGS)
    @given(strategy)
    def each(value: Any) -> None:
        send(value)

    each()
