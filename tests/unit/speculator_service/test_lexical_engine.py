"""The lexical selector in the service, with and without a speculator's engine."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.options import DecodeOptions
from skim_common.errors import InvalidRequestError, SkimError
from speculator_service import request_scores
from speculator_service import service as service_module
from speculator_service.factory import create_engine
from speculator_service.lexical_engine import LexicalSpeculator
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import relaid

FACT = [11, 12, 13, 14]


def needle(size=640, at=330):
    """Ids of a prompt, with a fact whose terms the question at its end repeats."""
    ids = np.random.default_rng(1).integers(100, 900, size)
    ids[at : at + 4] = FACT
    ids[-4:] = FACT
    return ids


@pytest.mark.parametrize("reuse", ["on", "off"])
async def test_the_chunk_that_shares_the_questions_terms_is_kept(demo_speculator, make_request, reuse):
    engine = MockSpeculator(demo_speculator)
    service = SpeculatorService(engine)
    request = make_request(needle(), selector="lexical", keep_rate=0.1, protect_last=4, reuse=reuse)
    selection = await service.select(relaid(request, question=(636, 640)))
    assert {330, 331, 332, 333} <= set(selection.kept.positions.tolist())
    assert selection.kept.token_ids.size < 130
    assert selection.kept.look_ahead_tokens.size == 0
    assert engine.started == 0
    other = await SpeculatorService(engine).select(
        replace(request, options=request.options.model_copy(update={"selector": "speculator"}))
    )
    assert engine.started == 1
    assert 330 not in other.kept.positions  # the mock's scores do not find the fact


@pytest.mark.parametrize("selector", ["lexical", "speculator"])
async def test_other_threads_select_lexically(demo_speculator, make_request, monkeypatch, selector):
    """The event loop serves other requests meanwhile. What follows a speculator's read is short, and stays."""
    inside = dict[str, bool]()
    for module, name in ((request_scores, "score_lexically"), (service_module, "select")):
        made = getattr(module, name)

        def noted(*args, name=name, made=made):
            inside[name] = threading.current_thread() is threading.main_thread()
            return made(*args)

        monkeypatch.setattr(module, name, noted)
    await SpeculatorService(MockSpeculator(demo_speculator)).select(make_request(needle(), selector=selector))
    assert inside == ({"score_lexically": False, "select": False} if selector == "lexical" else {"select": True})


async def test_without_a_question_the_last_tokens_are_the_question(demo_speculator, make_request):
    service = SpeculatorService(MockSpeculator(demo_speculator))
    selection = await service.select(make_request(needle(), selector="lexical", keep_rate=0.1, protect_last=4))
    assert 330 in selection.kept.positions


async def test_a_prompt_longer_than_the_speculators_limit_is_selected(demo_speculator, make_request):
    service = SpeculatorService(MockSpeculator(demo_speculator, max_model_len=500))
    selection = await service.select(make_request(needle(), selector="lexical"))
    assert selection.kept.context_length == 640
    with pytest.raises(InvalidRequestError, match="at most 500"):
        await service.select(make_request(needle()))
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        await service.select(make_request([], selector="lexical"))
    with pytest.raises(InvalidRequestError, match="out of vocabulary: the speculator has"):
        await service.select(make_request([10**6], selector="lexical"))


@pytest.mark.parametrize("context", ["full", "kept"])
async def test_only_a_session_over_the_kept_tokens_is_named(demo_speculator, make_request, context):
    engine = MockSpeculator(demo_speculator)
    service = SpeculatorService(engine, "host:1")
    request = replace(make_request(needle(), selector="lexical"), decode=DecodeOptions(draft_context=context))
    selection = await service.select(request)
    assert (selection.kept.session is not None) == (context == "kept")
    assert service.draft_context(request) == ("kept" if context == "kept" else None)
    assert not engine.sessions


async def test_a_pool_without_a_model_serves_only_the_lexical_selector(demo_speculator, make_request):
    engine = create_engine("lexical", demo_speculator)
    assert isinstance(engine, LexicalSpeculator)
    service = SpeculatorService(engine, "host:1")
    request = replace(make_request(needle(), selector="lexical"), decode=DecodeOptions(draft_context="kept"))
    selection = await service.select(request)
    assert selection.kept.session is None
    with pytest.raises(InvalidRequestError, match="selector must be lexical"):
        await service.select(make_request(needle()))
    with pytest.raises(SkimError, match="no engine option 'dtype'"):
        create_engine("lexical", demo_speculator, options={"dtype": "float32"})
    engine.close()
    with pytest.raises(SkimError, match="closed"):
        await engine.check_health()


async def test_a_second_question_extends_what_was_kept(demo_speculator, make_request):
    service = SpeculatorService(create_engine("lexical", demo_speculator))
    ids = needle(2000)
    first = await service.select(
        relaid(make_request(ids[:-4], selector="lexical", keep_rate=0.2), question=(1990, 1996))
    )
    second = await service.select(relaid(make_request(ids, selector="lexical", keep_rate=0.2), question=(1996, 2000)))
    assert first.reused_tokens == 0
    assert second.reused_tokens > 0
    assert 330 in second.kept.positions
