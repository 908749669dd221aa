"""The lexical selector in the service: the words of the units decide, and the engine is not asked."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.options import DecodeOptions
from skim_common.errors import InvalidRequestError
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import relaid

SIZE, UNIT, FOUND = 640, 10, 33


@pytest.fixture
def lexical(make_request):
    """A function: a request for lines of ten tokens, of which line FOUND shares words with the question at the end."""

    def made(size=SIZE, **options):
        ids = np.random.default_rng(1).integers(100, 900, size)
        options = {"selector": "lexical", "keep_rate": 0.1, "protect_last": 4, **options}
        units = np.arange(0, size, UNIT)
        request = relaid(make_request(ids, **options), question=(size - 4, size), units=units)
        words = (units == UNIT * FOUND).astype(np.float32)
        return replace(request, layout=replace(request.layout, words=words))

    return made


@pytest.mark.parametrize("reuse", ["on", "off"])
async def test_the_unit_that_shares_the_questions_words_is_kept(demo_speculator, lexical, reuse):
    engine = MockSpeculator(demo_speculator)
    selection = await SpeculatorService(engine).select(lexical(reuse=reuse))
    assert set(range(330, 340)) <= set(selection.kept.positions.tolist())
    assert selection.kept.token_ids.size < 130
    assert selection.kept.look_ahead_tokens.size == 0
    assert engine.started == 0


@pytest.mark.parametrize(
    "changes", [{"units": []}, {"question": None}, {}], ids=["token ids", "no question", "granularity chunk"]
)
async def test_without_words_and_a_question_it_is_refused(demo_speculator, lexical, changes):
    request = lexical(granularity="text" if changes else "chunk")
    if changes:
        layout = relaid(request, **changes).layout
        request = replace(request, layout=replace(layout, words=layout.words[: layout.units.size]))
    with pytest.raises(InvalidRequestError, match="selector lexical needs granularity text and a prompt of text with"):
        await SpeculatorService(MockSpeculator(demo_speculator)).select(request)


async def test_a_prompt_longer_than_the_speculators_limit_is_selected(demo_speculator, make_request, lexical):
    service = SpeculatorService(MockSpeculator(demo_speculator, max_model_len=500))
    assert (await service.select(lexical())).kept.context_length == SIZE
    with pytest.raises(InvalidRequestError, match="at most 500"):
        await service.select(lexical(selector="speculator"))
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        await service.select(make_request([], selector="lexical"))
    with pytest.raises(InvalidRequestError, match="out of vocabulary: the speculator has"):
        await service.select(make_request([10**6], selector="lexical"))


@pytest.mark.parametrize("context", ["full", "kept"])
async def test_its_session_is_over_the_kept_tokens(demo_speculator, lexical, context):
    engine = MockSpeculator(demo_speculator)
    service = SpeculatorService(engine, "host:1")
    decode = DecodeOptions(draft_context=context)
    selection = await service.select(replace(lexical(), decode=decode))
    assert selection.kept.session is not None
    assert not engine.sessions
    await service.select(replace(lexical(selector="speculator"), decode=decode))
    assert len(engine.sessions) == (context == "full"), "the control"


async def test_a_second_question_extends_what_was_kept(demo_speculator, lexical):
    service = SpeculatorService(MockSpeculator(demo_speculator))
    first = await service.select(lexical(2000, keep_rate=0.2))
    longer = lexical(2040, keep_rate=0.2)
    second = await service.select(longer)
    assert first.reused_tokens == 0
    assert second.reused_tokens > 0
    assert 330 in second.kept.positions
