"""The ASGI middleware around a small app: what it reads, and what it passes on."""

import asyncio
import json

import pytest

from router.admission.intake_lock import IntakeLock
from router.dispatch.state import CURRENT
from router.options.nesting import MAX_DEPTH
from tests.unit.router.asgi_calls import DEFAULTS, Call, middleware


class Recorder:
    """An app that records what it receives and answers 200."""

    async def __call__(self, scope, receive, send):
        self.context = CURRENT.get()
        self.received = [await receive(), await receive()]
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"ok"})


def nested(depth, inner=()):
    for _ in range(depth):
        inner = [inner]
    return inner


async def through(body, headers=()):
    app = Recorder()
    chunks = (body,) if isinstance(body, bytes) else (json.dumps(body).encode(),)
    call = await Call(app, chunks, headers=headers).run()
    return app, call


async def test_the_body_is_read_once_and_given_again():
    app = Recorder()
    call = await Call(app, chunks=(b'{"speculative_', b'prefill": {"keep_rate"', b": 0.5}}")).run()
    assert app.context.request.options.keep_rate == 0.5
    assert app.received[0]["body"] == b'{"speculative_prefill": {"keep_rate": 0.5}}'
    assert not app.received[0]["more_body"]
    assert app.received[1] == {"type": "http.disconnect"}
    assert (call.status, call.body) == (200, b"ok")


async def test_body_and_header_make_the_options():
    app, _ = await through({"speculative_prefill": {"look_ahead": 2}}, [(b"x-skim-prefill", b"keep=0.5")])
    assert (app.context.request.options.keep_rate, app.context.request.options.look_ahead) == (0.5, 2)
    app, _ = await through({})
    assert app.context.request.options == DEFAULTS
    app, _ = await through({"speculative_prefill": None})
    assert app.context.request.options == DEFAULTS


async def test_the_context_ends_with_the_request():
    await through({})
    assert CURRENT.get() is None


@pytest.mark.parametrize(("method", "scope_type"), [("GET", "http"), ("DELETE", "http"), ("GET", "lifespan")])
async def test_what_is_no_post_passes_untouched(method, scope_type):
    app = Recorder()
    call = Call(app, (b'{"speculative_prefill": 3}',), method, [(b"x-skim-prefill", b"nonsense")], scope_type)
    await call.run()
    assert app.context is None
    assert call.status == 200


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[1, 2]", b'"echo"', b"\xff echo", b'{"echo": ' + b"[" * 50, b'{"a": echo}']
)
async def test_a_malformed_body_is_the_apps_to_refuse(body):
    app, call = await through(body)
    assert app.received[0]["body"] == body
    assert app.context.request.options == DEFAULTS
    assert call.status == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"speculative_prefill": true, "messages": ' + b'[{"keep": 1, "content": ' * 200,
        json.dumps({"speculative_prefill": {"keep_rate": nested(200)}}).encode(),
        json.dumps({"tools": nested(200)}).encode("utf-16"),
        b"[" * 100_000,
    ],
)
async def test_a_deep_body_is_refused(body):
    app, call = await through(body)
    error = json.loads(call.body)["error"]
    assert (call.status, error["param"]) == (400, "the body")
    assert error["message"] == "the body has more than 100 levels of lists and objects; flatten it"
    assert not hasattr(app, "received")


async def test_a_body_as_deep_as_it_may_be_passes_with_its_options():
    part = {"keep": "always", "text": "x"}
    for _ in range(MAX_DEPTH // 2 - 2):
        part = {"content": [part]}
    app = Recorder()
    call = Call(app, (json.dumps({"messages": [part], "speculative_prefill": nested(MAX_DEPTH - 1)}).encode(),))
    call._scope["path"] = "/v1/chat/completions"
    await call.run()
    assert (call.status, json.loads(call.body)["error"]["param"]) == (400, "the body")
    call = Call(app, (json.dumps({"messages": [part]}).encode(),))
    call._scope["path"] = "/v1/chat/completions"
    await call.run()
    assert (call.status, app.context.request.keep_fields.keeps) == (200, ["always"])


async def test_a_deep_value_of_a_header_is_refused_by_its_name():
    _, call = await through({}, [(b"x-skim-prefill", b"keep=" + b"[" * 9000 + b"]" * 9000)])
    assert call.status == 400
    assert json.loads(call.body)["error"]["param"] == "speculative_prefill.keep_rate"


@pytest.mark.parametrize("error", [RecursionError, KeyError, MemoryError, asyncio.CancelledError])
async def test_the_next_request_is_taken_in_whatever_is_raised(monkeypatch, error):
    intake = IntakeLock(longest_s=3600.0)

    def fail(headers):
        raise error

    monkeypatch.setattr("router.http.middleware.read_later_requests", fail)
    call = Call(Recorder())
    call._app = middleware(Recorder(), intake=intake)
    with pytest.raises(error):
        await call.run()
    assert not intake._lock.locked()


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-le", "utf-32"])
async def test_the_option_is_read_in_every_encoding_of_json(encoding):
    """`json.loads`, and therefore FastAPI, reads all of them."""
    app, _ = await through(json.dumps({"speculative_prefill": False}).encode(encoding))
    assert not app.context.request.options.enabled


async def test_the_option_is_read_through_escapes():
    app, _ = await through(rb'{"sp\u0065culative_prefill": false}')
    assert not app.context.request.options.enabled


@pytest.mark.parametrize(
    ("fields", "echo", "beam"), [({"echo": True}, True, False), ({"use_beam_search": True}, False, True)]
)
async def test_what_makes_a_request_dense_is_noted(fields, echo, beam):
    app, _ = await through(fields)
    assert (app.context.request.echo, app.context.request.beam_search) == (echo, beam)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"kv_transfer_params": {"a": 1}}', "kv_transfer_params"),
        (b'{"kv_transfer_params": {}}', "kv_transfer_params"),
        (rb'{"kv_transfer_p\u0061rams": {"a": 1}}', "kv_transfer_params"),
        (json.dumps({"kv_transfer_params": 1}).encode("utf-16"), "kv_transfer_params"),
        (b'{"vllm_xargs": {"a": 1, "skim_positions": "0"}}', "vllm_xargs.skim_positions"),
        (rb'{"vllm_\u0078args": {"\u0073kim_positions": "0"}}', "vllm_xargs.skim_positions"),
        (b'{"vllm_xargs": {"kv_transfer_params": 1}}', "vllm_xargs.kv_transfer_params"),
    ],
)
async def test_reserved_fields_are_refused(body, param):
    app, call = await through(body)
    assert call.status == 400
    error = json.loads(call.body)["error"]
    assert error == {
        "message": f"{param} is reserved for the server; leave it out",
        "type": "BadRequestError",
        "param": param,
        "code": 400,
    }
    assert not hasattr(app, "received")


@pytest.mark.parametrize("fields", [{"kv_transfer_params": None}, {"vllm_xargs": {"mine": 1}}, {"vllm_xargs": "odd"}])
async def test_other_extra_arguments_pass(fields):
    _, call = await through(fields)
    assert call.status == 200


async def test_a_wrong_option_never_reaches_the_app():
    app, call = await through({"speculative_prefill": {"keep_rate": 2}})
    assert call.status == 400
    assert json.loads(call.body)["error"]["param"] == "speculative_prefill.keep_rate"
    assert not hasattr(app, "received")


async def test_a_client_that_leaves_while_it_sends_its_body():
    app = Recorder()
    call = Call(app)
    call._incoming = [{"type": "http.request", "body": b'{"a', "more_body": True}, {"type": "http.disconnect"}]
    await call.run()
    assert app.received[1] == {"type": "http.disconnect"}


async def test_requests_that_run_at_once_have_contexts_of_their_own():
    apps = [Recorder() for _ in range(8)]
    bodies = [json.dumps({"speculative_prefill": {"look_ahead": i}}).encode() for i in range(8)]
    await asyncio.gather(*(Call(app, (body,)).run() for app, body in zip(apps, bodies, strict=True)))
    assert [app.context.request.options.look_ahead for app in apps] == list(range(8))
