"""The pools' deployment classes with mock engines: encoded messages in and out, and no internal details in errors."""

import asyncio
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actors import speculator as module
from actors import target as target_module
from actors.pool_actor import PoolSettings
from actors.speculator import SpeculatorActor
from actors.target import TargetActor
from benchmarks.mock_engines.speculator import MockSpeculator
from benchmarks.mock_engines.target import MockTarget
from kv_transfer.codec import decode, encode
from kv_transfer.messages import ACCEPTED, GenerateOutput, Selection, SelectRequest
from kv_transfer.options import DecodeOptions
from skim_common.errors import (
    EngineUnavailableError,
    InvalidRequestError,
    ModelError,
    SkimError,
    WireError,
)
from skim_common.models.info import ModelInfo, check_pair
from speculator_service.service import COUNTS
from tests.reference.tokenizers_by_kind import model_without_weights
from tests.unit.actors.mock_actors import (
    IDS,
    MODELS,
    generate_request,
    replica,
    replies,
    select_request,
    speculator,
    target,
)


async def failure(reply, cls):
    with pytest.raises(SkimError) as caught:
        decode(reply, cls)
    return caught.value


async def selected(actor, payload):
    [reply] = [reply async for reply in actor.select(payload)]
    return reply


async def test_info_tells_what_the_replica_runs():
    for actor, folder, limit in (
        ((await speculator()), "speculator", 32768),
        ((await target(max_model_len=512)), "target", 512),
    ):
        info = decode(await actor.info(), ModelInfo)
        assert (info.engine, Path(info.path).name, info.max_model_len) == ("mock", folder, limit)


async def test_a_selection_is_bytes_in_and_bytes_out():
    selection = decode(await selected(await speculator(), select_request()), Selection)
    assert selection.kept.context_length == 400
    assert selection.kept.token_ids.tolist() == IDS[selection.kept.positions].tolist()
    assert selection.kept.token_ids.size < 200


@pytest.mark.parametrize("start_probe", ["dense", "refuse", "off"])
async def test_retrieval_heads_are_found_with_and_without_a_start_probe_and_before_it(monkeypatch, start_probe):
    calls = []

    async def ensure_heads(engine, model):
        calls.append("heads")
        engine.info = replace(engine.info, has_head_profile=True)

    async def find_failure(engine, model):
        calls.append(("probe", engine.info.has_head_profile))

    monkeypatch.setattr(module, "create_engine", lambda kind, model, **_: MockSpeculator(model))
    monkeypatch.setattr(module, "ensure_heads", ensure_heads)
    monkeypatch.setattr(module, "find_failure", find_failure)
    actor = SpeculatorActor.__new__(SpeculatorActor)
    await actor.__init__(PoolSettings(engine="vllm", model=str(MODELS / "speculator"), start_probe=start_probe))
    assert calls == (["heads"] if start_probe == "off" else ["heads", ("probe", True)])
    assert decode(await actor.info(), ModelInfo).has_head_profile


@pytest.mark.parametrize(("options", "most"), [({}, 20), ({"max_logprobs": 5}, 5)])
async def test_the_start_probe_of_a_target_asks_for_no_more_than_its_engine_shows(monkeypatch, options, most):
    asked = []

    async def find_failure(engine, model, *, max_logprobs):
        asked.append(max_logprobs)

    async def fetch_on_nodes(group, models):
        pass

    monkeypatch.setattr(target_module, "create_engine", lambda kind, model, **_: MockTarget(model))
    monkeypatch.setattr(target_module, "find_failure", find_failure)
    monkeypatch.setattr(target_module, "fetch_on_nodes", fetch_on_nodes)
    settings = PoolSettings(engine="vllm", model=str(MODELS / "target"), options=options, start_probe="dense")
    await TargetActor.__new__(TargetActor).__init__(settings)
    assert asked == [most]


async def test_an_answer_is_accepted_and_then_outputs():
    sign, *outputs = await replies((await target()), generate_request())
    assert sign == ACCEPTED
    decoded = [decode(reply, GenerateOutput) for reply in outputs]
    assert [output.finished for output in decoded] == [False, False, True]


async def test_accepted_comes_before_the_prefill():
    """The router's wait for a replica must not include the prefill."""
    actor = await target(prefill_ms=600_000)
    stream = actor.generate(generate_request())
    assert await anext(stream) == ACCEPTED
    assert (await actor.stats())["started"] == 0
    await stream.aclose()


async def test_bytes_that_are_no_request_are_a_wire_error():
    for payload in (b"", b"hello", select_request()[:-1], generate_request()[:20]):
        assert isinstance(await failure(await selected(await speculator(), payload), Selection), WireError)
        sign, last = await replies((await target()), payload)
        assert sign == ACCEPTED
        assert isinstance(await failure(last, GenerateOutput), WireError)


async def test_a_refused_request_is_an_encoded_error():
    error = await failure(await selected(await speculator(), select_request(np.array([5000], np.int32))), Selection)
    assert isinstance(error, InvalidRequestError)
    assert "Token id 5000" in str(error)
    _, last = await replies((await target()), generate_request(max_tokens=10**6))
    error = await failure(last, GenerateOutput)
    assert isinstance(error, InvalidRequestError)
    assert "1000000" in str(error)


async def test_an_engine_that_is_down_is_unavailable():
    assert isinstance(
        await failure(await selected(await speculator(fail_every=1), select_request()), Selection),
        EngineUnavailableError,
    )
    _, last = await replies((await target(fail_before_first=1)), generate_request())
    assert isinstance(await failure(last, GenerateOutput), EngineUnavailableError)


async def test_a_speculator_with_another_tokenizer_selects_in_the_target_s_tokens(tmp_path):
    folder = model_without_weights(tmp_path / "speculator", "byte_level")
    actor = SpeculatorActor.__new__(SpeculatorActor)
    await actor.__init__(PoolSettings(engine="mock", model=folder), reads_for=str(MODELS / "target"))
    info = decode(await actor.info(), ModelInfo)
    check_pair(info, decode(await (await target()).info(), ModelInfo))
    selection = decode(await selected(actor, select_request()), Selection)
    assert selection.kept.context_length == IDS.size
    assert np.array_equal(selection.kept.token_ids, IDS[selection.kept.positions])


class Broken:
    """An engine whose calls all raise an unexpected error."""

    info = None

    async def score(self, *args):
        raise RuntimeError("secret /root/path")

    async def generate(self, request):
        raise RuntimeError("secret /root/path")
        yield

    def close(self):
        pass


async def test_an_unexpected_error_shows_no_details(caplog):
    actors = (await speculator()), (await target())
    actors[0]._service.engine.score = Broken().score
    actors[1]._engine = Broken()
    _, last = await replies(actors[1], generate_request())
    for reply, cls, pool in (
        (await selected(actors[0], select_request()), Selection, "speculator"),
        (last, GenerateOutput, "target"),
    ):
        error = await failure(reply, cls)
        assert isinstance(error, EngineUnavailableError)
        assert str(error) == f"the {pool} engine failed on this request; its replica's log has the cause"
    assert "secret /root/path" in caplog.text


async def test_a_cancelled_selection_is_aborted_in_the_engine():
    actor = await speculator(latency_ms=600_000)
    task = asyncio.create_task(selected(actor, select_request()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert (await actor.stats())["running"] == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await actor.stats() == {"started": 1, "running": 0, "aborted": 1, **dict.fromkeys(COUNTS, 0), "records": 0}


async def test_a_closed_stream_is_aborted_in_the_engine():
    actor = await target()
    stream = actor.generate(generate_request())
    assert await anext(stream) == ACCEPTED
    await anext(stream)
    assert await actor.stats() == {"started": 1, "running": 1, "aborted": 0}
    await stream.aclose()
    assert await actor.stats() == {"started": 1, "running": 0, "aborted": 1}


async def test_a_session_can_be_ended_from_outside():
    actor = await replica(SpeculatorActor, "speculator", {}, {})
    selection = decode(await selected(actor, encode(SelectRequest("r", IDS, decode=DecodeOptions()))), Selection)
    assert selection.kept.session.id == "r"
    assert (await actor.stats())["sessions"] == 1
    await actor.end_session("another replica's")
    assert (await actor.stats())["sessions"] == 1
    await actor.end_session("r")
    assert (await actor.stats())["sessions"] == 0
    await actor._server.stop()


async def test_a_selection_that_cannot_be_sent_leaves_no_session(monkeypatch):
    actor = await replica(SpeculatorActor, "speculator", {}, {})

    def encode_too_much(message):
        raise WireError("too large")

    monkeypatch.setattr(module, "encode", encode_too_much)
    reply = await selected(actor, encode(SelectRequest("r", IDS, decode=DecodeOptions())))
    assert isinstance(await failure(reply, Selection), SkimError)
    assert (await actor.stats())["sessions"] == 0
    await actor._server.stop()


async def test_health_is_the_engines():
    actor = await speculator()
    await actor.check_health()
    actor._engine.close()
    with pytest.raises(EngineUnavailableError):
        await actor.check_health()
    await (await target()).check_health()


@pytest.mark.parametrize("cls", [SpeculatorActor, TargetActor])
async def test_a_replica_that_cannot_start_says_why(cls):
    with pytest.raises(ModelError, match="does not exist"):
        await replica(cls, "nowhere", {})
    with pytest.raises(SkimError, match=r"choose vllm, mock, or a class as package\.module:Class"):
        await cls.__new__(cls).__init__(PoolSettings(engine="tensorrt", model=str(MODELS / "target")))


@pytest.mark.parametrize("make", [speculator, target])
async def test_a_replica_that_goes_closes_its_engine(make):
    actor, closed = await make(), []
    actor._engine.close = lambda: closed.append(True)
    actor.__del__()
    assert closed
    actor._engine.close = lambda: None


async def test_a_target_has_loaded_what_requests_name_before_it_serves(monkeypatch):
    """vLLM would read the files of an adapter inside a step, where an error ends the engine."""
    asked = []

    async def prepare(self):
        asked.append(self)
        raise ModelError("the LoRA adapter 'sql' cannot be loaded")

    monkeypatch.setattr(MockTarget, "prepare", prepare)
    with pytest.raises(ModelError, match="'sql'"):
        await target()
    assert len(asked) == 1
