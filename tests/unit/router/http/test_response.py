"""When the headers and the comments of a response are sent, and in which form an error is."""

import json
from dataclasses import replace

import pytest

from benchmarks.harness import virtual_time
from router.http.response import KEEP_ALIVE
from tests.unit.router.asgi_calls import Call, Streaming, admitted, answering, begun, decided, failing


async def test_a_stream_is_held_until_its_headers_are_true():
    held = []

    def look(context):
        held.append(list(call.sent))

    call = Call(Streaming(b"role", look, decided("speculative"), b"x", look, answering, b"token", look, b"more"))
    await call.run()
    assert held[0] == held[1] == []
    assert [m.get("body") for m in held[2]] == [None, b"role", b"x", b"token"]
    assert call.body == b"rolextokenmore"
    assert call.headers["x-skim-mode"] == "speculative"
    assert call.headers["content-type"] == "text/event-stream; charset=utf-8"


async def test_without_a_generation_there_are_no_headers_of_ours():
    call = await Call(Streaming(b"tokens")).run()
    assert call.body == b"tokens"
    assert set(call.headers) == {"content-type"}


@pytest.mark.parametrize(("status", "retry"), [(503, "1"), (400, None), (500, None)])
async def test_an_error_before_the_first_token_replaces_the_response(status, retry):
    call = await Call(Streaming(b"role", failing(status), b"data: {error}", b"[DONE]")).run()
    assert call.status == status
    assert json.loads(call.body) == {"error": {"message": "why", "type": "SomeError", "param": None, "code": status}}
    assert call.headers.get("retry-after") == retry
    assert sum(message["type"] == "http.response.start" for message in call.sent) == 1


def last_event(call):
    """The name and the JSON data of the stream's last event."""
    name, data = call.body.decode().removesuffix("\n\n").rpartition("event: ")[2].split("\ndata: ")
    return name, json.loads(data)


async def test_an_error_after_the_first_token_ends_the_stream():
    call = await Call(Streaming(decided("dense"), answering, b"token", failing(503), b"data: {error}", b"more")).run()
    assert call.status == 200
    assert call.body.startswith(b"tokenevent: error\n")
    assert b"more" not in call.body
    name, data = last_event(call)
    assert (name, data["type"], data["error"]["message"]) == ("error", "error", "why")
    assert [message.get("more_body") for message in call.sent] == [None, True, False]


class Raising(Streaming):
    """A stream that passes on the exception of the engine client."""

    async def __call__(self, scope, receive, send):
        await super().__call__(scope, receive, lambda m: send({**m, "more_body": True}))
        raise RuntimeError("secret")


async def test_an_app_that_raises_is_answered_for():
    call = await Call(Raising(failing(503))).run()
    assert call.status == 503
    assert b"secret" not in call.body
    call = await Call(Raising(decided("dense"), answering, b"token", failing(503))).run()
    assert call.status == 200
    assert last_event(call)[1]["error"]["message"] == "why"
    assert not call.sent[-1]["more_body"]


async def test_an_error_that_is_not_ours_passes():
    with pytest.raises(RuntimeError, match="secret"):
        await Call(Raising(b"x")).run()


EVENT, TOKEN, DONE = b'data: {"a": 1}\n\n', b'data: {"token": 1}\n\n', b"data: [DONE]\n\n"
ALWAYS = {"content-type", "x-accel-buffering"}


def kept_alive(*steps, keep_alive_s=10.0, app=Streaming):
    """The call of an app whose stream may be silent for ten seconds, in virtual time."""
    call = Call(app(*steps), keep_alive_s=keep_alive_s)
    virtual_time.run(call.run())
    return call


def seen(call):
    """(seconds, body) of each message; the headers have no body."""
    return list(zip(call.times, (message.get("body") for message in call.sent), strict=True))


def reported(call):
    """The values that `GET /v1/requests/{id}` tells."""
    return json.loads(call.report("r"))["headers"]


def test_a_silent_stream_is_opened_and_kept_alive_until_the_first_token():
    call = kept_alive(begun, admitted, 35.0, decided("dense"), answering, TOKEN, DONE)
    first = [(10.0, None), *((10.0 * i, KEEP_ALIVE) for i in (1, 2, 3)), (35.0, TOKEN)]
    assert seen(call)[:-2] == first
    assert call.status == 200
    assert call.headers.keys() - ALWAYS == {"x-skim-prompt-tokens"}


def refusing_losses(context):
    options = context.request.options.model_copy(update={"lossy": "refuse"})
    context.request = replace(context.request, options=options)


def test_a_stream_that_may_refuse_a_loss_is_silent_until_that_is_decided():
    """A comment would be a status 200. Control: without the option, comments come from the admission on."""
    late = kept_alive(refusing_losses, begun, admitted, 35.0, failing(422))
    assert (late.status, late.times) == (422, [35.0, 35.0])
    assert kept_alive(begun, admitted, 35.0, failing(422)).status == 200
    call = kept_alive(refusing_losses, begun, admitted, 15.0, decided("speculative"), admitted, 15.0, answering, TOKEN)
    assert seen(call)[:3] == [(15.0, None), (15.0, KEEP_ALIVE), (25.0, KEEP_ALIVE)]


def test_the_values_that_the_headers_lack_are_reported():
    call = kept_alive(begun, admitted, 11.0, decided("dense"), answering, TOKEN, 5.0, EVENT, DONE)
    quick = kept_alive(begun, admitted, 9.0, decided("dense"), answering, TOKEN, 5.0, EVENT, DONE)
    values = reported(call)
    assert "x-skim-mode" not in call.headers
    assert values["x-skim-mode"] == "dense"
    assert values.keys() | call.headers.keys() == set(quick.headers)
    # Until the first token, not until the end.
    assert "total;dur=11000.00" in values["server-timing"]
    assert values["x-skim-prompt-tokens"] == call.headers["x-skim-prompt-tokens"] == "100"
    assert reported(quick).items() <= quick.headers.items()
    assert call.body == KEEP_ALIVE + TOKEN + EVENT + DONE


def test_nothing_is_reported_before_the_first_token():
    seen_before = []

    def look(context):
        seen_before.append(call.report("r"))

    call = Call(
        Streaming(begun, admitted, 11.0, decided("dense"), look, answering, TOKEN, look, DONE), keep_alive_s=10.0
    )
    virtual_time.run(call.run())
    assert [found is None for found in seen_before] == [True, False]


def test_a_quick_answer_has_no_comments():
    call = kept_alive(begun, admitted, 9.0, decided("dense"), answering, TOKEN, DONE)
    assert call.body == TOKEN + DONE
    assert "server-timing" in call.headers


def test_zero_switches_it_off():
    call = kept_alive(begun, admitted, 500.0, decided("dense"), answering, TOKEN, DONE, keep_alive_s=0.0)
    assert call.body == TOKEN + DONE
    assert call.times[0] == 500.0


def test_nothing_is_sent_before_the_admission():
    """A 503 or 429 is still a status then. After it, the silence that has passed counts."""
    call = kept_alive(begun, 25.0, failing(503), EVENT)
    assert (call.status, call.times[0]) == (503, 25.0)
    call = kept_alive(begun, 25.0, admitted, 1.0, decided("dense"), answering, TOKEN, DONE)
    assert seen(call)[:3] == [(25.0, None), (25.0, KEEP_ALIVE), (26.0, TOKEN)]


def test_every_prompt_must_be_admitted():
    call = kept_alive(begun, admitted, begun, 25.0, failing(503), EVENT)
    assert call.status == 503


def test_an_error_that_is_known_is_not_covered_by_a_comment():
    call = kept_alive(begun, admitted, 5.0, failing(503), 30.0, EVENT)
    assert call.status == 503


def test_an_error_after_the_opening_is_the_last_event():
    call = kept_alive(begun, admitted, 12.0, decided("dense"), failing(503), EVENT, DONE)
    assert call.status == 200
    assert call.body.startswith(KEEP_ALIVE + b"event: error")
    name, data = last_event(call)
    assert (name, data["error"]["code"]) == ("error", 503)
    assert DONE not in call.body
    assert reported(call)["x-skim-mode"] == "dense"
    assert "server-timing" not in reported(call)


def test_a_pause_between_tokens_is_filled():
    call = kept_alive(begun, admitted, decided("dense"), answering, TOKEN, 8.0, TOKEN, 25.0, TOKEN, DONE)
    assert seen(call)[1:-1] == [
        (0.0, TOKEN),
        (8.0, TOKEN),
        (18.0, KEEP_ALIVE),
        (28.0, KEEP_ALIVE),
        (33.0, TOKEN),
        (33.0, DONE),
    ]


def test_a_comment_never_parts_an_event():
    call = kept_alive(begun, admitted, decided("dense"), answering, b'data: {"a":', 30.0, b" 1}\n\n", DONE)
    assert call.body == EVENT + DONE


def test_events_that_were_held_go_out_with_the_headers():
    """/v1/responses sends two events before the first token."""
    call = kept_alive(EVENT, begun, admitted, 11.0, decided("dense"), answering, TOKEN, DONE)
    assert call.body.startswith(EVENT + KEEP_ALIVE + TOKEN)


class Whole(Streaming):
    content_type = b"application/json"


def test_what_is_no_stream_is_not_touched():
    call = kept_alive(begun, admitted, 30.0, decided("dense"), answering, b"{}", app=Whole)
    assert (call.body, call.times[0]) == (b"{}", 30.0)
    assert "x-accel-buffering" not in call.headers


def test_a_client_that_is_gone_ends_the_comments():
    call = Call(Streaming(begun, admitted, 15.0, answering, decided("dense"), TOKEN, DONE), keep_alive_s=10.0)

    async def send(message):
        raise OSError("the client is gone")

    async def receive():
        return {"type": "http.request", "body": b"{}"}

    with pytest.raises(OSError, match="gone"):
        virtual_time.run(call._app(call._scope, receive, send))
