"""The form of an error on each endpoint, as the clients of OpenAI and of Anthropic read it."""

import httpx
import httpx2
import pytest
from anthropic import APIStatusError as AnthropicError
from anthropic import AsyncAnthropic
from openai import APIStatusError as OpenAIError
from openai import AsyncOpenAI
from starlette.responses import JSONResponse

from router.admission.api_keys import LimitReachedError
from router.options.errors import HttpError, InvalidOptionError, RefusedError
from skim_common.errors import DeadlineError, EngineUnavailableError, SkimError

ERRORS = {
    "invalid_request_error": HttpError.of(InvalidOptionError("keep_rate must be a number", "keep_rate")),
    "authentication_error": HttpError(401, "AuthenticationError", "the API key is missing"),
    "not_found_error": HttpError(404, "NotFoundError", "no such request"),
    "request_too_large": HttpError.of(RefusedError(413, "RequestTooLarge", "the body is too large")),
    "rate_limit_error": HttpError.of(LimitReachedError("too many requests", 3)),
    "api_error": HttpError.of(SkimError("the pools disagree")),
    "overloaded_error": HttpError.of(EngineUnavailableError("no replica is free")),
    "timeout_error": HttpError.of(DeadlineError("the deadline has passed")),
}


def answering(error, library):
    """A client of `library` (httpx, or httpx2, which Anthropic's client takes) that always gets this error."""

    async def app(scope, receive, send):
        await JSONResponse(error.body(scope["path"]), error.status, error.headers)(scope, receive, send)

    return library.AsyncClient(transport=library.ASGITransport(app=app))


@pytest.mark.parametrize(("status", "kind"), [(408, "invalid_request_error"), (502, "api_error")])
def test_a_status_that_anthropic_does_not_name(status, kind):
    assert HttpError(status, "SomeError", "why").body("/v1/messages")["error"]["type"] == kind


@pytest.mark.parametrize("kind", ERRORS)
async def test_anthropics_client_reads_kind_and_message(kind):
    error = ERRORS[kind]
    async with AsyncAnthropic(
        api_key="k", base_url="http://skim", max_retries=0, http_client=answering(error, httpx2)
    ) as client:
        with pytest.raises(AnthropicError) as raised:
            await client.messages.create(model="m", max_tokens=4, messages=[{"role": "user", "content": "x"}])
        with pytest.raises(AnthropicError) as counted:
            await client.messages.count_tokens(model="m", messages=[{"role": "user", "content": "x"}])
    for found in (raised.value, counted.value):
        assert found.status_code == error.status
        assert found.body["type"] == "error"
        assert (found.body["error"]["type"], found.body["error"]["message"]) == (kind, error.message)


@pytest.mark.parametrize("kind", ERRORS)
async def test_openais_client_reads_kind_and_message(kind):
    error = ERRORS[kind]
    async with AsyncOpenAI(
        api_key="k", base_url="http://skim/v1", max_retries=0, http_client=answering(error, httpx)
    ) as client:
        asked = [
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x"}]),
            client.completions.create(model="m", prompt="x"),
            client.responses.create(model="m", input="x"),
        ]
        for request in asked:
            with pytest.raises(OpenAIError) as raised:
                await request
            assert (raised.value.status_code, raised.value.type) == (error.status, error.type)
            assert raised.value.body["message"] == error.message
            assert raised.value.param == error.param
