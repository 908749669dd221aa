"""Starting, closing and drafting sessions of `PairEngines`, over engines without weights."""

import asyncio
import os
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.draft_channel import DraftClient
from kv_transfer.drafts import DraftReply, DraftRequest, DraftRow
from kv_transfer.layout import NO_LAYOUT
from kv_transfer.messages import KeptPrompt, SelectRequest
from kv_transfer.options import DecodeOptions, SelectionOptions
from skim.engines import EngineSettings, PairEngines
from skim_common.errors import ModelError, SkimError
from skim_common.models.info import inspect_model, load_tokenizer
from speculator_service.start import find_heads
from speculator_service.translation import TranslatingSpeculator
from tests.reference.tokenizers_by_kind import model_without_weights
from tests.unit.conftest import MODELS
from tests.unit.kv_transfer.layouts import layout_of

SPECULATOR = EngineSettings(str(MODELS / "speculator"), "mock")
TARGET = EngineSettings(str(MODELS / "target"), "mock")
PROMPT = np.arange(10, 410, dtype=np.int32)
REMOTE = DecodeOptions()


async def selected(pair, options=None, layout=NO_LAYOUT, **fields):
    """The selection of PROMPT."""
    return await pair.select(
        SelectRequest(pair.name("select"), PROMPT, options or SelectionOptions(), layout, **fields)
    )


class Started:
    """Makes engines that note when they are closed."""

    def __init__(self, fails=()):
        self.closed, self.fails = [], fails

    def settings(self, name):
        def create(kind, model, *, tensor_parallel, options):
            if name in self.fails:
                raise SkimError(f"the {name} did not start")
            engine = MockSpeculator(model)
            engine.close = lambda: self.closed.append(name)
            return engine

        return EngineSettings(str(MODELS / "target"), "mock", create=create)


async def test_the_target_is_closed_first():
    started = Started()
    pair = PairEngines(speculator=started.settings("speculator"), target=started.settings("target"))
    assert started.closed == []
    await pair.close()
    assert started.closed == ["target", "speculator"]


async def test_a_second_engine_that_does_not_start_closes_the_first():
    started = Started(fails=["target"])
    with pytest.raises(SkimError, match="the target did not start"):
        PairEngines(speculator=started.settings("speculator"), target=started.settings("target"))
    assert started.closed == ["speculator"]


async def test_two_tokenizers(tmp_path):
    """The prompt and the selection are in the target's tokens, also without a target's engine."""
    for file in (MODELS / "speculator").iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    file = tmp_path / "tokenizer.json"
    file.write_text(file.read_text().replace('"kettle"', '"kettles"').replace('"Ġkettle"', '"Ġkettles"'))
    other = EngineSettings(str(tmp_path), "mock")
    for rest in ({"target": TARGET}, {"reads_for": TARGET.model}):
        pair = PairEngines(speculator=other, **rest)
        assert pair.tokenizer.get_vocab() == load_tokenizer(TARGET.model).get_vocab()
        assert pair.speculator.info.fingerprint == inspect_model(TARGET.model, engine="mock").fingerprint
        selection = await selected(pair, decode=REMOTE)
        kept = selection.kept
        assert np.array_equal(kept.token_ids, PROMPT[kept.positions])
        assert kept.session is None
        await pair.close()


async def test_models_that_do_not_fit_are_refused_before_an_engine_starts(tmp_path):
    started = Started()
    with pytest.raises(ModelError, match="does not exist"):
        PairEngines(speculator=started.settings("a"), target=EngineSettings(str(tmp_path / "no"), "mock"))
    assert started.closed == []


async def test_engines_start_with_their_environment(monkeypatch):
    monkeypatch.delenv("SKIM_TEST", raising=False)
    seen = []

    def create(kind, model, **more):
        seen.append(os.environ.get("SKIM_TEST"))
        return MockSpeculator(model)

    settings = EngineSettings(SPECULATOR.model, "mock", environment={"SKIM_TEST": "here"}, create=create)
    await PairEngines(speculator=settings).close()
    assert seen == ["here"]
    assert "SKIM_TEST" not in os.environ


async def test_a_half_that_was_not_opened_is_named():
    pair = PairEngines(speculator=SPECULATOR)
    with pytest.raises(SkimError, match="without a target"):
        pair.target  # noqa: B018
    assert pair.tokenizer.chat_template
    await pair.close()
    pair = PairEngines(target=TARGET)
    with pytest.raises(SkimError, match="without a speculator"):
        await selected(pair)
    await pair.close()


async def test_only_remote_decoding_leaves_a_session():
    pair = PairEngines(speculator=SPECULATOR, target=TARGET)
    for decode in (None, DecodeOptions(method="none"), DecodeOptions(method="ngram")):
        assert (await selected(pair, decode=decode)).kept.session is None
    assert pair._server is None
    selections = await asyncio.gather(*(selected(pair, decode=REMOTE) for _ in range(3)))
    sessions = [selection.kept.session for selection in selections]
    assert {session.address for session in sessions} == {await pair.draft_address()}
    assert len({session.id for session in sessions}) == 3
    assert pair.drafts.metrics()["opened"] == 3
    await pair.end_session(selections[0].kept.session)
    assert pair.drafts.metrics()["sessions"] == 2
    await pair.close()


async def drafts_of(pair):
    """What the draft channel replies for a new selection's session, after its look-ahead tokens."""
    kept = (await selected(pair, SelectionOptions(look_ahead=2), decode=REMOTE)).kept
    client = DraftClient(kept.session.address, deadline_s=20.0)
    request = DraftRequest([DraftRow(kept.session.id, 0, np.array([11, 12, 13], np.int32), 3)])
    try:
        return await asyncio.to_thread(client.exchange, request)
    finally:
        client.close()


async def test_the_draft_channel_drafts_after_the_answer():
    pair = PairEngines(speculator=SPECULATOR, target=TARGET)
    [draft] = (await drafts_of(pair)).drafts.values()
    assert draft.tokens.size == 3
    await pair.close()


async def test_the_replies_of_the_draft_channel_can_be_replaced():
    seen = []

    pair = PairEngines(speculator=SPECULATOR, target=TARGET)
    handle = pair.drafts.handle

    async def no_drafts(request):
        seen.append(await handle(request))
        return DraftReply()

    pair.drafts.handle = no_drafts
    assert (await drafts_of(pair)).drafts == {}
    assert [draft.tokens.size for draft in seen[0].drafts.values()] == [3]
    await pair.close()


async def test_a_region_of_a_prompt_has_its_own_keep_rate():
    pair = PairEngines(speculator=SPECULATOR)
    options = SelectionOptions(keep_rate=0.01, protect_last=1, reuse="off")
    plain = await selected(pair, options)
    selection = await selected(pair, options, layout_of((), [(96, 224, 1.0)]))
    await pair.close()
    assert plain.kept.positions.size <= 33
    assert set(range(96, 224)) <= set(selection.kept.positions.tolist())
    assert selection.kept.positions.size <= 128 + 33


@pytest.mark.parametrize("other", [False, True])
async def test_the_heads_of_a_speculator_are_found(tmp_path, monkeypatch, other):
    """The search reads in the speculator's own tokens; what it finds counts for the pair, also with two tokenizers."""
    searched = []

    async def ensure_heads(engine, model):
        searched.append((type(engine), model))
        engine.info = replace(engine.info, has_head_profile=True)

    monkeypatch.setattr(find_heads, "ensure_heads", ensure_heads)
    model = model_without_weights(tmp_path / "other", "byte_level") if other else SPECULATOR.model
    settings = EngineSettings(model, "vllm", create=lambda kind, model, **_: MockSpeculator(model))
    pair = PairEngines(speculator=settings, reads_for=TARGET.model)
    await pair.ensure_heads()
    assert searched == [(MockSpeculator, model)]
    assert pair.speculator.info.has_head_profile
    assert isinstance(pair.speculator, TranslatingSpeculator) == other
    await pair.close()
    await (without := PairEngines(target=TARGET)).ensure_heads()
    await without.close()
    assert len(searched) == 1


async def test_a_line_brings_what_is_nested_under_it():
    """As in serving: the indents reach the selection."""
    pair = PairEngines(speculator=SPECULATOR)
    units = np.arange(0, 400, 20, dtype=np.int32)
    flat, options = layout_of(units=units), SelectionOptions(keep_rate=0.1, scoring="attention", reuse="off")
    scored = await selected(pair, options, flat, return_importance=True)
    best = int(np.argmax(np.add.reduceat(scored.importance, units)))
    indents = np.zeros(20, np.int32)
    indents[best + 1] = 4
    kept = [
        set((await selected(pair, options, one)).kept.positions.tolist())
        for one in (flat, replace(flat, indents=indents))
    ]
    nested = set(range(20 * best + 20, 20 * best + 40))
    assert [nested <= positions for positions in kept] == [False, True]
    await pair.close()


async def test_a_line_brings_one_that_shares_an_identifier(monkeypatch):
    """As in serving: the links reach the selection. The mock's lines all score about the same."""
    monkeypatch.setattr("speculator_service.selection.units.LINKED", 1.0)
    pair = PairEngines(speculator=SPECULATOR)
    units = np.arange(0, 400, 20, dtype=np.int32)
    flat, options = layout_of(units=units, indents=[0] * 20), SelectionOptions(keep_rate=0.5, reuse="off")
    means = np.add.reduceat((await selected(pair, options, flat, return_importance=True)).importance, units)[:-2]
    best, worst = int(np.argmax(means)), int(np.argmin(means))
    linked = replace(flat, links=np.array([[best, worst]], np.int32))
    kept = [set((await selected(pair, options, one)).kept.positions.tolist()) for one in (flat, linked)]
    brought = set(range(20 * worst, 20 * worst + 20))
    assert [brought <= positions for positions in kept] == [False, True]
    await pair.close()


async def test_the_target_reads_late_units_in_the_order_of_its_cache():
    """As in serving, if the model has positions for it."""
    pair = PairEngines(target=TARGET)
    read, generate = [], pair.target.generate

    def noting(request):
        read.append(request.prompt)
        return generate(request)

    pair.target.generate = noting
    positions = np.array([0, 1, 8, 4, 9], np.int32)
    prompt = KeptPrompt(positions + 10, positions, 10)
    for room in (1, 0):
        pair.target.info = replace(pair.target.info, max_position=10 + room + 2)
        async for _ in pair.generate(prompt, {"max_tokens": 2}):
            pass
    assert [found.positions.tolist() for found in read] == [[0, 1, 8, 9, 10], positions.tolist()]
    await pair.close()
