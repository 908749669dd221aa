"""The actors' traces. They cost nothing if they are off, and a missing collector causes no wait."""

import socket
import subprocess
import sys
import threading

import numpy as np
import pytest
import ray
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from ray.serve import context
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.context import ReplicaContext

import benchmarks.mock_engines.target
from actors.observability import tracing
from actors.observability.tracing import (
    add_part,
    child_span,
    ending,
    headers_of,
    server_span,
    start_traces,
    stop_traces,
)
from actors.speculator import SpeculatorActor
from actors.target import TargetActor
from benchmarks.mock_engines.target import MockTarget
from kv_transfer.codec import decode, encode
from kv_transfer.drafts import DraftRequest, DraftRow
from kv_transfer.messages import Envelope, GenerateOutput, GenerateRequest, KeptPrompt, Selection, SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim_common.errors import SkimError
from tests.reference.otlp_receiver import otlp_receiver
from tests.unit.actors.mock_actors import mock_settings
from tests.unit.actors.observability.span_recorder import SpanRecorder
from tests.unit.actors.test_actors import IDS

HEADERS = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-request-id": "r-1"}


def loaded_by(code):
    """The modules of OpenTelemetry's SDK and exporters that a new process has imported after `code`."""
    code += "; import sys; print([m for m in sys.modules if m.startswith(('opentelemetry.sdk', 'opentelemetry.exp'))])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_off_imports_only_the_api_of_opentelemetry():
    module = "from actors.observability.tracing import *; "
    off = module + "start_traces(None); child_span(server_span('a', {}), 'b')"
    assert loaded_by(off + "; import actors.observability.spans, router.dispatch.telemetry; stop_traces()") == "[]"
    on = module + "start_traces(dict(endpoint='http://x', sample_ratio=1, service_name='s'))"
    assert "opentelemetry.exporter.otlp" in loaded_by(on), "the control"


def test_off_is_nothing():
    assert start_traces(None) is False
    with ending(server_span("a", HEADERS)) as span:
        with ending(child_span(span, "b")) as child:
            assert child is span
        add_part(span, "c", 0, 1)
        assert (span.is_recording(), headers_of(span)) == (False, None)


@pytest.fixture
def recorder():
    yield SpanRecorder()
    stop_traces()


async def target(**options):
    actor = TargetActor.__new__(TargetActor)
    await actor.__init__(mock_settings("target", options))
    return actor


def request(**fields):
    fields = {"sampling": {"max_tokens": 3}, "envelope": Envelope(HEADERS), **fields}
    return GenerateRequest("chatcmpl-r-1", KeptPrompt.dense(IDS), **fields)


async def outputs(actor, request):
    return [decode(reply, GenerateOutput) async for reply in actor.generate(encode(request)) if reply]


async def test_both_legs_of_a_split_target(recorder):
    legs = {role: await target(kv_role=role) for role in ("prefill", "decode")}
    told = await outputs(legs["prefill"], request(prefill_only=True, sampling={"max_tokens": 1}))
    await outputs(legs["decode"], request(kv_blocks=told[-1].kv_blocks))
    first, second = (recorder.named(f"skim.target.{leg}_leg") for leg in ("prefill", "decode"))
    assert first.parent == second.parent
    assert (first.attributes["skim.cached_tokens"], second.attributes["skim.cached_tokens"]) == (0, IDS.size)
    assert {span.attributes["skim.request_id"] for span in recorder.spans} == {"r-1"}


@pytest.mark.parametrize("endpoint", [{"otlp_traces_endpoint": "http://collector:4317"}, {}])
async def test_the_engines_own_spans_are_below_ours(monkeypatch, recorder, endpoint):
    class Engine(MockTarget):
        def __init__(self, model, *, otlp_traces_endpoint=None, **options):
            super().__init__(model, **options)

        async def generate(self, request):
            given.append(request.engine_args)
            async for output in super().generate(request):
                yield output

    given = []
    monkeypatch.setattr(benchmarks.mock_engines.target, "MockTarget", Engine)
    actor = await target(**endpoint)
    await outputs(actor, request(engine_args={"reasoning_ended": True}))
    await outputs(actor, request(envelope=Envelope()))
    ours = recorder.named("skim.target.generate").context
    told = given[0].get("trace_headers", {})
    assert (told.get("traceparent") == f"00-{ours.trace_id:032x}-{ours.span_id:016x}-01") is bool(endpoint)
    assert given[0]["reasoning_ended"]
    assert given[1] == {}


async def test_a_request_that_nobody_traces_gets_no_span(recorder):
    assert len(await outputs(await target(), request(envelope=Envelope()))) == 3
    assert recorder.spans == []


async def test_an_error_tells_its_class_alone(recorder):
    actor = await target()
    long = KeptPrompt.dense(np.arange(10**6, dtype=np.int32))
    with pytest.raises(SkimError):
        await outputs(actor, GenerateRequest("r", long, {"max_tokens": 3}, envelope=Envelope(HEADERS)))
    [span] = recorder.spans
    assert span.attributes["error.type"] == "InvalidRequestError"
    assert (span.status.description, span.events) == (None, ())


async def drafting(monkeypatch):
    """A speculator with one session. The address of its draft server is not used."""
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    actor = SpeculatorActor.__new__(SpeculatorActor)
    await actor.__init__(mock_settings("speculator"), {})
    options = SelectionOptions(look_ahead=2)
    asked = SelectRequest("s", IDS, options, decode=DecodeOptions(draft_context="full"), envelope=Envelope(HEADERS))
    [reply] = [reply async for reply in actor.select(encode(asked))]
    return actor, decode(reply, Selection).kept.look_ahead_tokens


async def test_a_session_is_a_span_with_its_counts(monkeypatch, recorder):
    actor, look_ahead = await drafting(monkeypatch)
    assert recorder.open == 1

    async def tell(position, tokens):
        row = DraftRow("s", position, np.asarray(tokens, np.int32), 4)
        return (await actor._drafts.handle(DraftRequest([row]))).drafts["s"].tokens

    answer = [*look_ahead.tolist(), 7]  # both look-ahead tokens, and the target's own after them
    drafts = await tell(0, answer)
    await tell(len(answer), [*drafts[:3].tolist(), (int(drafts[3]) + 1) % 100])
    await actor.end_session("s")
    span = recorder.named("skim.speculator.draft")
    assert recorder.open == 0
    await actor._server.stop()
    counts = {name: span.attributes[f"skim.{name}"] for name in ("draft_rounds", "drafts", "accepted_drafts")}
    assert counts == {"draft_rounds": 2, "drafts": 2 + 4 + 4, "accepted_drafts": 2 + 3}
    assert span.attributes["skim.request_id"] == "r-1"
    assert span.parent == recorder.named("skim.speculator.select").parent


async def test_a_replica_that_stops_ends_its_sessions_spans(monkeypatch, recorder):
    actor, _ = await drafting(monkeypatch)
    actor._traced = True
    actor.__del__()
    actor._traced = False
    assert (recorder.open, recorder.closed) == (0, True)
    await actor._server.stop()


async def test_a_replica_that_stops_sends_what_it_has(recorder):
    actor = await target()
    await outputs(actor, request())
    actor._traced = True
    actor.__del__()
    actor._traced = False
    assert recorder.closed


@pytest.fixture
def dead_collector():
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_collector_that_never_answers_is_not_waited_for(monkeypatch, dead_collector):
    """While the exporter hangs, requests are served and the replica can stop."""
    monkeypatch.setattr(tracing, "CLOSE_S", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "3")
    actor = TargetActor.__new__(TargetActor)
    traces = {"endpoint": dead_collector, "sample_ratio": 1.0, "service_name": "skim"}
    await actor.__init__(mock_settings("target").model_copy(update={"traces": traces}))
    assert len(await outputs(actor, request())) == 3
    stop_traces()
    assert [thread for thread in threading.enumerate() if "OtelBatch" in thread.name], "it hangs, as it is to"
    assert all(thread.daemon for thread in threading.enumerate() if "OtelBatch" in thread.name)
    assert len(await outputs(actor, request())) == 3


def test_a_full_queue_loses_spans_not_requests():
    class Stuck(InMemorySpanExporter):
        def export(self, spans):
            going.set()
            let_go.wait()
            return super().export(spans)

    going, let_go, exporter = threading.Event(), threading.Event(), Stuck()
    tracing.record_spans(BatchSpanProcessor(exporter, max_queue_size=2, max_export_batch_size=1))
    for i in range(50):
        server_span(f"a{i}", HEADERS).end()
        going.wait()
    let_go.set()
    stop_traces()
    assert [span.name for span in exporter.get_finished_spans()] == ["a0", "a48", "a49"]


def test_a_collector_gets_the_spans_and_who_made_them(monkeypatch):
    replica = ReplicaContext(ReplicaID("r1", DeploymentID("target", "skim")), None, None, None, 1)
    monkeypatch.setattr(context, "_INTERNAL_REPLICA_CONTEXT", replica)
    with otlp_receiver() as receiver:
        start_traces({"endpoint": receiver.url + "/", "sample_ratio": 1.0, "service_name": "mine"})
        with ending(server_span("a", HEADERS)) as span:
            span.set_attribute("skim.kept_tokens", 3)
        stop_traces()
    [received] = receiver.spans
    assert (received.name, received.service, received.instance) == ("a", "mine-target", "r1")
    assert f"00-{received.trace_id}-{received.parent_id}-01" == HEADERS["traceparent"]
    assert received.attributes == {"skim.kept_tokens": 3, "skim.request_id": "r-1"}
