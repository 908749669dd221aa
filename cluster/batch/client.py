"""Sends one request with retries, through OpenAI's own client.

The client retries after a lost connection and after 408, 409, 429 and 5xx. It waits as long as `Retry-After` says (up
to two minutes), otherwise 0.5 s growing to 8 s with jitter.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

import httpx2
import msgspec
from openai import APIConnectionError, APIStatusError, APITimeoutError, AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import SecretStr

from cluster.batch.rows import BatchRequest, Response, RowFault
from router.options.headers import LATER_REQUESTS, MOST_LATER_REQUESTS
from skim_common.errors import EngineUnavailableError, SkimError
from skim_common.proxies import client_options

CONNECT_TIMEOUT_S = 10.0
UNAVAILABLE = frozenset({429, 502, 503, 504})
"""Status codes of an endpoint, or of a gateway before it, that may be temporary."""
EFFECTIVE = "x-skim-"
"""How the names of headers begin that tell how Skim ran a request. They are kept with the answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where requests go, and how often they are retried. timeout_s: of one try."""

    url: str
    api_key: SecretStr
    max_retries: int = 8
    timeout_s: float = 3600.0


class BatchClient:
    """Sends requests to one endpoint, at most `concurrency` at a time. Must be used in one event loop.

    It begins with one at a time, and each outcome allows one more. A router that has just started knows no costs: it
    would give the speculator all of a burst, which is more than it can select in time.
    """

    def __init__(self, endpoint: Endpoint, concurrency: int) -> None:
        self._url, self._http = endpoint.url.rstrip("/"), _client(endpoint)
        self._turn, self._more = asyncio.Semaphore(1), concurrency - 1

    async def ask(self, request: BatchRequest, later: int = 0) -> Response | RowFault:
        """The endpoint's answer (also an HTTP error), or the reason why there is none.

        later: how many rows after this one begin with most of its prompt. A server that is not Skim ignores it.
        Raises EngineUnavailableError if the endpoint no longer answers any request: then the row is not at fault.
        """
        async with self._turn:
            outcome = await self._outcome(request, min(later, MOST_LATER_REQUESTS))
        if self._more:
            self._more -= 1
            self._turn.release()
        return outcome

    async def _outcome(self, request: BatchRequest, later: int) -> Response | RowFault:
        try:
            return await self._post(request, later)
        except APITimeoutError:
            fault = RowFault("timeout", "the endpoint took longer than --timeout at every try")
        except APIConnectionError as error:
            reason = str(error.__cause__ or error)
            fault = RowFault("connection_error", f"the connection was lost at every try: {reason}")
        await self._check_alive()
        return fault

    async def _post(self, request: BatchRequest, later: int) -> Response:
        try:
            response = await self._http.post(
                request.url,
                body=request.body,
                cast_to=httpx2.Response,
                options={"headers": {LATER_REQUESTS: str(later)}},
            )
        except APIStatusError as error:
            response = error.response
            if response.status_code in UNAVAILABLE:
                await self._check_alive()
        body = _body(response.content)
        request_id = response.headers.get("x-request-id") or (body.get("id") if isinstance(body, dict) else None)
        effective = {name: value for name, value in response.headers.items() if name.startswith(EFFECTIVE)}
        return Response(response.status_code, str(request_id or ""), body, effective)

    async def _check_alive(self) -> None:
        try:
            await self._http.get("/v1/models", cast_to=httpx2.Response, options={"max_retries": 1, "timeout": 60.0})
        except APIStatusError as error:
            if error.response.status_code not in UNAVAILABLE:
                return
        except APIConnectionError:
            pass
        else:
            return
        raise EngineUnavailableError(f"the endpoint {self._url} stopped answering")


async def check_endpoint(endpoint: Endpoint) -> None:
    """Raise SkimError unless the endpoint answers and accepts the key. Called before any row is sent."""
    try:
        async with _client(endpoint) as http:
            await http.get("/v1/models", cast_to=httpx2.Response, options={"max_retries": 3, "timeout": 60.0})
    except APIConnectionError:
        raise SkimError(
            f"nothing answers at {endpoint.url}: start `skim serve`, give a running --endpoint, or give a --config, "
            "which starts pools for the batch"
        ) from None
    except APIStatusError as error:
        code = error.response.status_code
        hint = "set OPENAI_API_KEY to a key that it accepts" if code in (401, 403) else "is it an OpenAI endpoint?"
        raise SkimError(f"{endpoint.url} answered {code} for its /v1/models: {hint}") from None


def _client(endpoint: Endpoint) -> AsyncOpenAI:
    logging.getLogger("openai").setLevel(logging.ERROR)
    return AsyncOpenAI(
        base_url=endpoint.url.rstrip("/").removesuffix("/v1"),
        api_key=endpoint.api_key.get_secret_value(),
        max_retries=endpoint.max_retries,
        timeout=httpx2.Timeout(endpoint.timeout_s, connect=CONNECT_TIMEOUT_S),
        http_client=DefaultAsyncHttpxClient(**client_options(endpoint.url)),
    )


def _body(content: bytes) -> Any:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        return content.decode(errors="replace")
