"""Spans of one request through the router and two actors, which run in this process."""

import asyncio
from contextlib import aclosing

import pytest
import pytest_asyncio

from actors.observability.tracing import child_span, ending, stop_traces
from actors.speculator import SpeculatorActor
from actors.target import TargetActor
from kv_transfer.codec import decode, encode
from kv_transfer.messages import ACCEPTED, GenerateOutput, Selection
from router.dispatch.state import CURRENT
from skim_common.errors import EngineUnavailableError
from skim_common.models.info import ModelInfo
from tests.unit.actors.mock_actors import mock_settings
from tests.unit.actors.observability.span_recorder import SpanRecorder, parent_of
from tests.unit.router.asgi_calls import middleware
from tests.unit.router.conftest import MAX_MODEL_LEN, MODELS, until
from tests.unit.router.endpoints.test_endpoints import ENDPOINTS, request_body
from tests.unit.router.endpoints.test_http_errors import raw_call

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROOT = MODELS.parent
TRACE, CLIENTS_SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, NOT_SAMPLED = f"00-{TRACE}-{CLIENTS_SPAN}-01", f"00-{TRACE}-{CLIENTS_SPAN}-00"
KEEP = {"speculative_prefill": {"keep_rate": 0.25}}


class ActorPools:
    """Pools that call the actors directly, with messages as bytes."""

    untrusted = False

    def __init__(self, speculator, target):
        self._speculator, self._target = speculator, target
        self.selects, self.generates = [], []

    async def connect(self):
        self.speculator = decode(await self._speculator.info(), ModelInfo)
        self.target = decode(await self._target.info(), ModelInfo)
        return self

    async def select(self, request, *_):
        self.selects.append(request)
        [reply] = [reply async for reply in self._speculator.select(encode(request))]
        return decode(reply, Selection)

    async def generate(self, request, admitted):
        self.generates.append(request)
        async with aclosing(self._target.generate(encode(request))) as replies:
            async for reply in replies:
                if reply != ACCEPTED:
                    yield decode(reply, GenerateOutput)

    async def end_session(self, session):
        pass

    def replicas(self, pool):
        return 1.0


@pytest_asyncio.fixture(loop_scope="session")
async def traced(served):
    """`await traced(speculator={...}, target={...})`: records the spans of requests to these mocks."""
    before = served.dispatcher.pools

    async def use(speculator=None, target=None, sample_ratio=1.0):
        made = []
        for actor, options in ((SpeculatorActor, speculator), (TargetActor, target)):
            folder = "speculator" if actor is SpeculatorActor else "target"
            one = actor.__new__(actor)
            await one.__init__(mock_settings(folder, {"max_model_len": MAX_MODEL_LEN, **(options or {})}))
            made.append(one)
        served.dispatcher.pools = await ActorPools(*made).connect()
        return SpanRecorder(sample_ratio)

    yield use
    served.dispatcher.pools = before
    stop_traces()


@pytest.fixture
def recorder():
    yield SpanRecorder()
    stop_traces()


async def test_one_trace_goes_through_all_three(served, traced, document):
    recorder = await traced(target={"prefill_ms": 20.0, "decode_ms": 2.0})
    headers = {"traceparent": SAMPLED, "tracestate": "vendor=1", "x-request-id": "the-clients-own"}
    body = request_body("/v1/chat/completions", document, max_tokens=5, **KEEP)
    response = await served.client.post("/v1/chat/completions", json=body, headers=headers)
    assert response.status_code == 200
    request = recorder.named("POST /v1/chat/completions")
    assert (f"{request.parent.trace_id:x}".zfill(32), f"{request.parent.span_id:x}") == (TRACE, CLIENTS_SPAN)
    parents = {
        "skim.router.tokenize": request.name,
        "skim.router.select": request.name,
        "skim.router.generate": request.name,
        "skim.speculator.select": "skim.router.select",
        "skim.speculator.queue": "skim.speculator.select",
        "skim.speculator.speculate": "skim.speculator.select",
        "skim.speculator.choose": "skim.speculator.select",
        "skim.target.generate": "skim.router.generate",
        "skim.target.queue": "skim.target.generate",
        "skim.target.prefill": "skim.target.generate",
        "skim.target.decode": "skim.target.generate",
    }
    found = {span.name: parent_of(span, recorder.spans) for span in recorder.spans}
    assert {name: parent and parent.name for name, parent in found.items()} == {request.name: None, **parents}
    assert {span.attributes["skim.request_id"] for span in recorder.spans} == {"the-clients-own"}
    assert {span.context.trace_state.get("vendor") for span in recorder.spans} == {"1"}
    assert recorder.open == 0
    for span in recorder.spans:
        assert span.status.is_unset
        assert span.end_time >= span.start_time


async def test_what_the_spans_say(served, traced, document):
    recorder = await traced(target={"prefill_ms": 20.0, "decode_ms": 2.0})
    body = request_body("/v1/chat/completions", document, max_tokens=5, **KEEP)
    response = await served.client.post("/v1/chat/completions", json=body)
    kept = int(response.headers["x-skim-kept-tokens"])
    request = recorder.named("POST /v1/chat/completions").attributes
    assert request["http.route"] == "/v1/chat/completions"
    assert request["http.response.status_code"] == 200
    assert request["gen_ai.operation.name"] == "chat"
    assert request["gen_ai.request.model"] == "demo"
    assert request["gen_ai.usage.input_tokens"] == document.prompt_tokens
    assert request["gen_ai.usage.output_tokens"] == 5
    assert (request["skim.mode"], request["skim.reason"]) == ("speculative", "requested")
    assert request["skim.kept_tokens"] == kept
    assert request["skim.keep_rate"] == pytest.approx(kept / document.prompt_tokens)
    select = recorder.named("skim.speculator.select").attributes
    assert (select["gen_ai.usage.input_tokens"], select["skim.kept_tokens"]) == (document.prompt_tokens, kept)
    assert select["gen_ai.request.model"] == "speculator"
    generate = recorder.named("skim.target.generate")
    assert generate.attributes["gen_ai.usage.input_tokens"] == kept
    assert generate.attributes["gen_ai.usage.output_tokens"] == 5
    assert generate.attributes["gen_ai.response.finish_reasons"] == ("length",)
    assert generate.attributes["skim.engine_request_id"].startswith(response.json()["id"] + "~")
    [first_token] = generate.events
    prefill, decoding = (recorder.named(f"skim.target.{part}") for part in ("prefill", "decode"))
    document = (ROOT / "docs" / "observability.md").read_text()
    assert {key for span in recorder.spans for key in span.attributes if f"`{key}`" not in document} == set()
    assert prefill.start_time + 20_000_000 == prefill.end_time == first_token.timestamp == decoding.start_time


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ENDPOINTS)
async def test_tokens_are_counted_on_every_endpoint(served, traced, document, path, stream):
    recorder = await traced()
    body = request_body(path, document, max_tokens=5, stream=stream)
    assert (await served.client.post(path, json=body)).status_code == 200
    request = recorder.named(f"POST {path}").attributes
    assert request["gen_ai.usage.output_tokens"] == 5
    assert "skim.cancelled" not in request
    assert request["gen_ai.operation.name"] == ("text_completion" if path == "/v1/completions" else "chat")
    assert recorder.open == 0


async def test_a_selection_without_an_answer_is_traced(served, traced, document):
    recorder = await traced()
    body = {"text": document.document, "question": document.question}
    assert (await served.client.post("/v1/select", json=body)).status_code == 200
    request = recorder.named("POST /v1/select").attributes
    assert request["gen_ai.operation.name"] == "select"
    assert (request["skim.reason"], request["gen_ai.usage.output_tokens"]) == ("selection-only", 0)
    assert recorder.named("skim.router.select").parent.span_id is not None
    assert recorder.open == 0


async def test_several_prompts_of_one_request(served, traced, document):
    recorder = await traced()
    body = request_body("/v1/completions", document, n=2, prompt=[document.prompt, "short"], **KEEP)
    assert (await served.client.post("/v1/completions", json=body)).status_code == 200
    request = recorder.named("POST /v1/completions").attributes
    assert (request["skim.mode"], request["skim.reason"]) == ("dense, speculative", "requested, short-prompt")
    assert request["gen_ai.usage.output_tokens"] == 2 * 2 * 4
    assert recorder.names().count("skim.router.generate") == 2
    assert recorder.names().count("skim.router.select") == 1


async def test_no_text_is_in_a_span(served, traced, document):
    """Covers good requests, refused requests and failing engines. The control: counts and names are found."""
    recorder = await traced(speculator={"fail_every": 2}, target={"fail_before_first": 1})
    for path in ENDPOINTS:
        body = request_body(path, document)
        broken = [{**body, "temperature": document.document}, {**body, "speculative_prefill": {"keep_rate": "kettle"}}]
        for one in (body, {**body, "stream": True}, {**body, "max_tokens": 10**6}, *broken):
            await served.client.post(path, json=one)
    told = " ".join(f"{s.to_json()} {s.resource.to_json()}" for s in recorder.spans)
    assert "skim.target.decode" in told
    assert '"gen_ai.usage.input_tokens"' in told
    assert [word for word in set(document.document.split()) if len(word) > 5 and word in told] == []
    answers = served.dispatcher.pools._target._engine._tokenizer
    assert answers.decode([1, 2]) not in told
    assert recorder.open == 0


async def test_a_failed_selection_is_an_error_of_its_spans_alone(served, traced, document):
    recorder = await traced(speculator={"fail_every": 1})
    body = request_body("/v1/chat/completions", document, **KEEP)
    assert (await served.client.post("/v1/chat/completions", json=body)).status_code == 200
    for span in (recorder.named("skim.router.select"), recorder.named("skim.speculator.select")):
        assert not span.status.is_ok
        assert not span.status.is_unset
        assert span.status.description is None
        assert span.attributes["error.type"] == "EngineUnavailableError"
    request = recorder.named("POST /v1/chat/completions")
    assert request.status.is_unset
    assert (request.attributes["skim.mode"], request.attributes["skim.reason"]) == ("dense", "speculator-error")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failed_answer_is_an_error_of_the_request(served, traced, document, stream):
    recorder = await traced(target={"fail_before_first": 1})
    body = request_body("/v1/chat/completions", document, stream=stream)
    assert (await served.client.post("/v1/chat/completions", json=body)).status_code == 503
    errors = {span.name: span.attributes["error.type"] for span in recorder.spans if span.status.status_code.value == 2}
    assert errors == {
        "POST /v1/chat/completions": "ServiceUnavailableError",
        "skim.router.generate": EngineUnavailableError.__name__,
        "skim.target.generate": EngineUnavailableError.__name__,
    }
    assert recorder.named("POST /v1/chat/completions").attributes["http.response.status_code"] == 503
    assert recorder.open == 0


async def test_a_refused_request_is_no_error_of_the_server(served, traced, document):
    recorder = await traced()
    body = request_body("/v1/chat/completions", document, speculative_prefill={"keep_rate": 7})
    await served.client.post("/v1/chat/completions", json=body)
    [span] = recorder.spans
    assert span.name == "POST", "the request was refused before it had a route"
    assert span.attributes["http.response.status_code"] == 400
    assert span.status.is_unset


@pytest.mark.parametrize(
    ("speculator", "target", "open_span"),
    [
        ({"latency_ms": 60_000.0}, {}, "skim.speculator.select"),
        ({}, {"prefill_ms": 60_000.0}, "skim.target.generate"),
        ({}, {"decode_ms": 60_000.0}, "skim.target.generate"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_hangs_up_ends_its_spans(served, traced, document, speculator, target, open_span, stream):
    recorder = await traced(speculator=speculator, target=target)
    pools = served.dispatcher.pools
    engine = (pools._speculator if speculator else pools._target)._engine
    leave = asyncio.Event()
    path = "/v1/chat/completions"
    call = asyncio.create_task(served.app(*raw_call(request_body(path, document, stream=stream, **KEEP), path, leave)))
    await until(lambda: engine.running)
    assert recorder.open > 0
    leave.set()
    await asyncio.wait_for(call, 30)
    await until(lambda: recorder.open == 0)
    step = open_span.split(".")[-1]
    names = [f"POST {path}", f"skim.router.{step}", open_span]
    ended = {span.name: span for span in recorder.spans}
    assert [ended[name].attributes.get("skim.cancelled") for name in names] == [True] * 3
    assert all(span.status.is_unset for span in recorder.spans)


async def test_a_request_that_serve_cancels_ends_its_spans(recorder):
    """Serve cancels the task in which the app runs."""

    async def app(scope, receive, send):
        with ending(child_span(CURRENT.get().span, "below")):
            await asyncio.sleep(600)

    traced = middleware(app, model="m")
    task = asyncio.create_task(traced(*raw_call({})))
    await until(lambda: recorder.open == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [span.attributes["skim.cancelled"] for span in recorder.spans] == [True, True]


async def test_the_clients_choice_of_sampling_holds_everywhere(served, traced, document):
    recorder = await traced()
    body = request_body("/v1/chat/completions", document, **KEEP)
    await served.client.post("/v1/chat/completions", json=body, headers={"traceparent": NOT_SAMPLED})
    assert recorder.spans == []
    recorder = await traced(sample_ratio=0.0)
    await served.client.post("/v1/chat/completions", json=body)
    assert recorder.spans == [], "the pools sample what the router samples"
    await served.client.post("/v1/chat/completions", json=body, headers={"traceparent": SAMPLED})
    assert len(recorder.spans) == 12


@pytest.mark.parametrize("header", ["nonsense", "00-0-0-01", f"ff-{TRACE}-{CLIENTS_SPAN}-01", "\xe9"])
async def test_a_malformed_header_begins_a_trace(served, traced, document, header):
    recorder = await traced()
    body = request_body("/v1/chat/completions", document)
    headers = {"traceparent": header.encode("latin-1")}
    assert (await served.client.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
    assert recorder.named("POST /v1/chat/completions").parent is None


async def test_where_traces_are_off_nothing_crosses(client, pools, document):
    body = request_body("/v1/chat/completions", document, **KEEP)
    await client.post("/v1/chat/completions", json=body, headers={"traceparent": SAMPLED})
    assert [request.envelope.trace for request in (*pools.selects, *pools.generates)] == [None, None]


async def test_a_route_that_answers_no_prompt(recorder):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 500, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    traced = middleware(app, model="m")
    await traced(*raw_call({}, "/secret-path"))
    [span] = recorder.spans
    assert (span.name, span.attributes["error.type"]) == ("POST", "500")
    assert "secret" not in span.to_json()
    assert not [name for name in span.attributes if name.startswith("gen_ai")]
