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

import actors.observability.tracing
import actors.pool_actor
import benchmarks.mock_engines.target
from actors.observability.tracing import NO_SPAN, NO_TRACER, Tracer, create_tracer
from actors.observability.tracing_otlp import provider
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
    module = "from actors.observability.tracing import create_tracer; "
    off = module + "tracer = create_tracer(None); tracer.span('a', {}).__enter__().child('b')"
    assert (
        loaded_by(off + "; import actors.observability.pool_spans, router.dispatch.telemetry; tracer.close()") == "[]"
    )
    on = module + "create_tracer(dict(endpoint='http://x', sample_ratio=1, service_name='s'))"
    assert "opentelemetry.exporter.otlp" in loaded_by(on), "the control"


def test_off_is_nothing():
    assert create_tracer(None) is NO_TRACER
    with NO_TRACER.span("a", HEADERS) as span:
        assert span is NO_SPAN
        with span.child("b") as child:
            assert child is NO_SPAN
        span.set({"a": 1})
        span.part("c", 0, 1)
        assert (span.recording, span.headers) == (False, None)


async def target(monkeypatch, recorder, **options):
    monkeypatch.setattr(actors.pool_actor, "create_tracer", lambda settings: recorder.tracer)
    actor = TargetActor.__new__(TargetActor)
    await actor.__init__(mock_settings("target", options))
    return actor


def request(**fields):
    fields = {"sampling": {"max_tokens": 3}, "envelope": Envelope(HEADERS), **fields}
    return GenerateRequest("chatcmpl-r-1", KeptPrompt.dense(IDS), **fields)


async def outputs(actor, request):
    return [decode(reply, GenerateOutput) async for reply in actor.generate(encode(request)) if reply]


async def test_both_legs_of_a_split_target(monkeypatch):
    processes = {role: SpanRecorder() for role in ("prefill", "decode")}
    legs = {role: await target(monkeypatch, recorder, kv_role=role) for role, recorder in processes.items()}
    told = await outputs(legs["prefill"], request(prefill_only=True, sampling={"max_tokens": 1}))
    await outputs(legs["decode"], request(kv_blocks=told[-1].kv_blocks))
    first, second = (
        processes["prefill"].named("skim.target.prefill_leg"),
        processes["decode"].named("skim.target.decode_leg"),
    )
    assert first.parent == second.parent
    assert (first.attributes["skim.cached_tokens"], second.attributes["skim.cached_tokens"]) == (0, IDS.size)
    assert {span.attributes["skim.request_id"] for r in processes.values() for span in r.spans} == {"r-1"}


@pytest.mark.parametrize("endpoint", [{"otlp_traces_endpoint": "http://collector:4317"}, {}])
async def test_the_engines_own_spans_are_below_ours(monkeypatch, endpoint):
    class Engine(MockTarget):
        def __init__(self, model, *, otlp_traces_endpoint=None, **options):
            super().__init__(model, **options)

        async def generate(self, request):
            given.append(request.engine_args)
            async for output in super().generate(request):
                yield output

    given, recorder = [], SpanRecorder()
    monkeypatch.setattr(benchmarks.mock_engines.target, "MockTarget", Engine)
    actor = await target(monkeypatch, recorder, **endpoint)
    await outputs(actor, request(engine_args={"reasoning_ended": True}))
    await outputs(actor, request(envelope=Envelope()))
    ours = recorder.named("skim.target.generate").context
    told = given[0].get("trace_headers", {})
    assert (told.get("traceparent") == f"00-{ours.trace_id:032x}-{ours.span_id:016x}-01") is bool(endpoint)
    assert given[0]["reasoning_ended"]
    assert given[1] == {}


async def test_a_request_that_nobody_traces_gets_no_span(monkeypatch):
    recorder = SpanRecorder()
    assert len(await outputs(await target(monkeypatch, recorder), request(envelope=Envelope()))) == 3
    assert recorder.spans == []


async def test_an_error_tells_its_class_alone(monkeypatch):
    recorder = SpanRecorder()
    actor = await target(monkeypatch, recorder)
    long = KeptPrompt.dense(np.arange(10**6, dtype=np.int32))
    with pytest.raises(SkimError):
        await outputs(actor, GenerateRequest("r", long, {"max_tokens": 3}, envelope=Envelope(HEADERS)))
    [span] = recorder.spans
    assert span.attributes["error.type"] == "InvalidRequestError"
    assert (span.status.description, span.events) == (None, ())


async def drafting(monkeypatch, recorder):
    """A speculator with one session. The address of its draft server is not used."""
    monkeypatch.setattr(actors.pool_actor, "create_tracer", lambda settings: recorder.tracer)
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    actor = SpeculatorActor.__new__(SpeculatorActor)
    await actor.__init__(mock_settings("speculator"), {})
    options = SelectionOptions(look_ahead=2)
    asked = SelectRequest("s", IDS, options, decode=DecodeOptions(draft_context="full"), envelope=Envelope(HEADERS))
    [reply] = [reply async for reply in actor.select(encode(asked))]
    return actor, decode(reply, Selection).kept.look_ahead_tokens


async def test_a_session_is_a_span_with_its_counts(monkeypatch):
    recorder = SpanRecorder()
    actor, look_ahead = await drafting(monkeypatch, recorder)
    assert recorder.open == 1

    async def tell(position, tokens):
        row = DraftRow("s", position, np.asarray(tokens, np.int32), 4)
        [draft] = (await actor._drafts.handle(DraftRequest([row]))).drafts
        return draft.tokens

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


async def test_a_replica_that_stops_ends_its_sessions_spans(monkeypatch):
    recorder = SpanRecorder()
    actor, _ = await drafting(monkeypatch, recorder)
    actor._draft_spans.begin("s", HEADERS)  # an id that is used twice
    assert recorder.open == 1
    actor.__del__()
    assert (recorder.open, recorder.closed) == (0, True)
    await actor._server.stop()


async def test_a_replica_that_stops_sends_what_it_has(monkeypatch):
    recorder = SpanRecorder()
    actor = await target(monkeypatch, recorder)
    await outputs(actor, request())
    actor.__del__()
    assert recorder.closed


@pytest.fixture
def dead_collector():
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


async def test_a_collector_that_never_answers_is_not_waited_for(monkeypatch, dead_collector):
    """While the exporter hangs, requests are served and the replica can stop."""
    monkeypatch.setattr(actors.observability.tracing, "CLOSE_S", 0.2)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "3")
    tracer = create_tracer({"endpoint": dead_collector, "sample_ratio": 1.0, "service_name": "skim"})
    monkeypatch.setattr(actors.pool_actor, "create_tracer", lambda settings: tracer)
    actor = TargetActor.__new__(TargetActor)
    await actor.__init__(mock_settings("target"))
    assert len(await outputs(actor, request())) == 3
    tracer.close()
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
    tracer = Tracer(provider(BatchSpanProcessor(exporter, max_queue_size=2, max_export_batch_size=1)))
    for i in range(50):
        with tracer.span(f"a{i}", HEADERS):
            pass
        going.wait()
    let_go.set()
    tracer.close()
    assert [span.name for span in exporter.get_finished_spans()] == ["a0", "a48", "a49"]


def test_a_collector_gets_the_spans_and_who_made_them(monkeypatch):
    replica = ReplicaContext(ReplicaID("r1", DeploymentID("target", "skim")), None, None, None, 1)
    monkeypatch.setattr(context, "_INTERNAL_REPLICA_CONTEXT", replica)
    with otlp_receiver() as receiver:
        tracer = create_tracer({"endpoint": receiver.url + "/", "sample_ratio": 1.0, "service_name": "mine"})
        with tracer.span("a", HEADERS) as span:
            span.set({"skim.kept_tokens": 3})
        tracer.close()
    [received] = receiver.spans
    assert (received.name, received.service, received.instance) == ("a", "mine-target", "r1")
    assert f"00-{received.trace_id}-{received.parent_id}-01" == HEADERS["traceparent"]
    assert received.attributes == {"skim.kept_tokens": 3, "skim.request_id": "r-1"}


def test_a_span_lasts_as_long_as_it_did_though_the_clock_is_set_meanwhile(monkeypatch):
    recorder, hour_ns = SpanRecorder(), 3600 * 10**9
    wall = actors.observability.tracing.time.time_ns
    with recorder.tracer.span("a", HEADERS) as span:
        for by in (-hour_ns, hour_ns):
            monkeypatch.setattr(actors.observability.tracing.time, "time_ns", lambda by=by: wall() + by)
            with span.child(f"child {by}"):
                assert 0 <= span.now() < 60_000
    whole, *children = (recorder.named(name) for name in ("a", f"child {-hour_ns}", f"child {hour_ns}"))
    assert all(whole.start_time <= child.start_time <= child.end_time <= whole.end_time for child in children)
