"""Which errors are retried, how long the client waits, and when it gives up the endpoint instead of the row."""

from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from pydantic import SecretStr

from cluster.batch.rows import BatchRequest, Response, RowFault
from cluster.batch.worker import BatchClient, Endpoint, check_endpoint
from skim_common.errors import EngineUnavailableError, SkimError

REQUEST = BatchRequest("a", "POST", "/v1/chat/completions", {"model": "m", "speculative_prefill": {"keep_rate": 0.1}})
OK = {"id": "chatcmpl-1", "choices": []}


def endpoint(max_retries: int = 3) -> Endpoint:
    return Endpoint("http://endpoint/v1", SecretStr("secret"), max_retries)


def script(*steps: Any, models: int | Exception = 200) -> Callable[[httpx2.Request], httpx2.Response]:
    """Answers POSTs with `steps` in order and then repeats the last one; `models` answers /v1/models."""
    left: Iterator[Any] = iter(steps)
    last: list[Any] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            step: Any = models if isinstance(models, Exception) else httpx2.Response(models, json={})
        else:
            step = next(left, None) or last[0]
            last[:] = [step]
        if isinstance(step, Exception):
            raise step
        return step

    return answer


def lost() -> Exception:
    return httpx2.ConnectError("connection refused")


async def test_the_row_arrives_as_it_is(serve: Any) -> None:
    seen: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append(request)
        return httpx2.Response(200, json=OK, headers={"x-request-id": "abc"})

    serve(answer)
    assert await BatchClient(endpoint(), 1).ask(REQUEST) == Response(200, "abc", OK)
    assert str(seen[0].url) == "http://endpoint/v1/chat/completions"
    assert seen[0].headers["authorization"] == "Bearer secret"
    assert b'"speculative_prefill":{"keep_rate":0.1}' in seen[0].content


async def test_how_skim_ran_the_row_stays_with_the_answer(serve: Any) -> None:
    headers = {"X-Skim-Mode": "speculative", "x-skim-kept-tokens": "400", "x-request-id": "abc", "date": "today"}
    serve(lambda request: httpx2.Response(200, json=OK, headers=headers))
    told = {"x-skim-mode": "speculative", "x-skim-kept-tokens": "400"}
    assert await BatchClient(endpoint(), 1).ask(REQUEST) == Response(200, "abc", OK, told)


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_endpoint_is_waited_for(serve: Any, status: int) -> None:
    busy = httpx2.Response(status, headers={"retry-after": "7"}, json={})
    waits = serve(script(busy, busy, httpx2.Response(200, json=OK)))
    assert await BatchClient(endpoint(), 1).ask(REQUEST) == Response(200, "chatcmpl-1", OK)
    assert waits == [7.0, 7.0]


async def test_a_lost_connection_is_tried_again_with_growing_waits(serve: Any) -> None:
    waits = serve(script(lost(), lost(), lost(), httpx2.Response(200, json=OK)))
    assert await BatchClient(endpoint(), 1).ask(REQUEST) == Response(200, "chatcmpl-1", OK)
    assert len(waits) == 3
    assert waits == sorted(waits)


@pytest.mark.parametrize("status", [400, 422])
async def test_a_refused_row_is_an_answer(serve: Any, status: int) -> None:
    body = {"error": {"message": "no such option"}}
    waits = serve(script(httpx2.Response(status, json=body)))
    assert await BatchClient(endpoint(), 1).ask(REQUEST) == Response(status, "", body)
    assert not waits


async def test_a_body_that_is_no_json_is_kept_as_text(serve: Any) -> None:
    serve(script(httpx2.Response(404, text="<html>nothing</html>")))
    assert await BatchClient(endpoint(), 1).ask(REQUEST) == Response(404, "", "<html>nothing</html>")


async def test_a_row_that_alone_fails_is_an_error(serve: Any) -> None:
    serve(script(lost()))
    said = await BatchClient(endpoint(), 1).ask(REQUEST)
    assert isinstance(said, RowFault)
    assert said.code == "connection_error"
    serve(script(httpx2.ReadTimeout("slow")))
    said = await BatchClient(endpoint(), 1).ask(REQUEST)
    assert isinstance(said, RowFault)
    assert said.code == "timeout"
    serve(script(httpx2.Response(503, json={})))
    assert await BatchClient(endpoint(), 1).ask(REQUEST) == Response(503, "", {})


@pytest.mark.parametrize("models", [lost(), 503], ids=["lost", "503"])
@pytest.mark.parametrize("post", [lost(), httpx2.Response(503, json={})], ids=["lost", "503"])
async def test_an_endpoint_that_is_gone_stops_the_job(serve: Any, post: Any, models: Any) -> None:
    """Its rows do not become errors: the next run sends them again."""
    serve(script(post, models=models))
    with pytest.raises(EngineUnavailableError, match="http://endpoint/v1 stopped answering"):
        await BatchClient(endpoint(), 1).ask(REQUEST)


@pytest.mark.parametrize(
    ("models", "message"),
    [
        (lost(), "nothing answers at http://endpoint/v1: start `skim serve`"),
        (401, "answered 401 for its /v1/models: set OPENAI_API_KEY"),
        (404, "answered 404 for its /v1/models: is it an OpenAI endpoint?"),
    ],
)
async def test_an_endpoint_is_checked_before_any_row(serve: Any, models: Any, message: str) -> None:
    serve(script(httpx2.Response(200), models=models))
    with pytest.raises(SkimError, match=message):
        await check_endpoint(endpoint())


async def test_an_endpoint_in_order_passes(serve: Any) -> None:
    serve(script(httpx2.Response(200)))
    await check_endpoint(endpoint())


def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(endpoint())
