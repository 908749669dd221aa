"""A selection that extends what was kept for an earlier prompt."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.options import DecodeOptions
from speculator_service.drafting import DraftService
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import relaid


class RecordingEngine(MockSpeculator):
    """A mock whose importance is set by a test: chunks of 32 tokens, the first in the list counts most."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.important = []
        self.forgets = False

    async def score(self, request):
        scores = await super().score(request)
        importance = np.full(request.token_ids.size, 1e-3, np.float32)
        for rank, chunk in enumerate(self.important):
            importance[32 * chunk : 32 * chunk + 32] = 1 - rank / 100
        cached = 0 if self.forgets else scores.cached_tokens
        return replace(scores, importance=importance, cached_tokens=cached)


ANSWER = list(range(900, 930))
FIRST = [7] * 32 + list(range(100, 900)) * 3 + [8] * 40
RULE = {"keep_rate": 0.1, "granularity": "chunk"}
SECOND = [*FIRST, *ANSWER, *[9] * 40]


@pytest.fixture
def engine(demo_speculator):
    return RecordingEngine(demo_speculator, cache_tokens=100_000)


@pytest.fixture
def turns(make_request, engine):
    """Select the first and the second turn; the second question needs chunk 60. Returns both selections."""

    async def run(service, first=None, second=None, salts=(None, None), between=None, **decoding):
        first_asked = make_request(FIRST, [(0, 32), (2432, 2472)], **{**RULE, **(first or {})})
        engine.important = [5, 20, 21, 22, 23, 24, 25]
        one = await service.select(replace(first_asked, cache_salt=salts[0], **decoding))
        if between:
            between()
        second_asked = make_request(SECOND, [(0, 32), (2502, 2542)], **{**RULE, **(second or {})})
        engine.important = [60, 20, 21, 22, 23, 24, 25]
        second_asked = relaid(second_asked, question=(2510, 2540))
        asked = replace(second_asked, request_id="r2", cache_salt=salts[1], **decoding)
        return one, await service.select(asked)

    return run


async def test_a_turn_extends_the_turn_before_it(turns, engine):
    service = SpeculatorService(engine)
    one, two = await turns(service)
    extended = [*one.kept.positions, *range(2472, 2510), *range(60 * 32, 61 * 32), *range(2510, 2542)]
    assert two.kept.positions.tolist() == extended
    assert two.kept.token_ids.tolist() == [SECOND[p] for p in extended]
    assert (one.reused_tokens, two.reused_tokens) == (0, one.kept.token_ids.size)
    assert two.cached_tokens == 2464  # all whole blocks of the first prompt
    assert np.flatnonzero(two.late).size == 32
    assert two.coverage == pytest.approx(float(two.kept.positions.size and _share(engine.important, extended)))
    assert service.stats() == {
        "record_hits": 1,
        "records_lost": 0,
        "reused_tokens": one.kept.token_ids.size,
        "late_tokens": 32,
        "compactions": 0,
        "records": 1,
    }


def _share(important, positions):
    importance = np.full(len(SECOND), 1e-3, np.float32)
    for rank, chunk in enumerate(important):
        importance[32 * chunk : 32 * chunk + 32] = 1 - rank / 100
    return importance[positions].sum() / importance.sum()


@pytest.mark.parametrize(
    ("first", "second", "salts", "records"),
    [
        ({}, {"reuse": "off"}, (None, None), 1),
        ({"reuse": "off"}, {}, (None, None), 1),
        ({"reuse": "off"}, {"reuse": "off"}, (None, None), 0),
        ({}, {}, ("a", "b"), 2),
        ({}, {}, ("a", None), 2),
        ({}, {"keep_rate": 1.0}, (None, None), 2),
    ],
)
async def test_a_selection_is_fresh(turns, engine, make_request, first, second, salts, records):
    """Without reuse, with another salt, and if nothing is dropped."""
    service = SpeculatorService(engine)
    _, two = await turns(service, first, second, salts)
    alone = make_request(SECOND, [(0, 32), (2502, 2542)], **{"keep_rate": 0.1, **second})
    fresh = await SpeculatorService(engine).select(alone)
    assert two.kept.positions.tolist() == fresh.kept.positions.tolist()
    assert service.stats()["records"] == records
    assert not two.late.any()


async def test_a_record_dies_with_the_kv_of_its_prompt(turns, engine):
    service = SpeculatorService(engine)
    _, two = await turns(service, between=lambda: setattr(engine, "forgets", True))
    assert (two.reused_tokens, service.stats()["records_lost"], service.stats()["records"]) == (0, 1, 1)
    assert two.kept.is_ascending


async def test_a_question_that_is_read_again_is_no_lost_kv(make_request, engine):
    """With score queries of a question that stands early, the engine computes most of the prompt again."""
    service = SpeculatorService(engine)
    asked = make_request(FIRST, [(0, 32), (300, 2472)], **RULE, scoring="heads")
    asked = relaid(asked, question=(300, 340))
    await service.select(asked)
    again = await service.select(replace(asked, request_id="r2"))
    assert again.cached_tokens <= 300
    assert (again.reused_tokens > 0, service.stats()["records_lost"]) == (True, 0)


async def test_an_engine_without_a_prefix_cache_keeps_records(turns, demo_speculator, engine):
    """Its zero cached tokens are no evidence."""
    engine.info, engine.forgets = replace(engine.info, cache_tokens=0), True
    _, two = await turns(SpeculatorService(engine))
    assert two.reused_tokens > 0


async def test_there_are_no_more_records_than_the_cache_has_tokens(turns, engine):
    engine.info = replace(engine.info, cache_tokens=2000)
    service = SpeculatorService(engine)
    _, two = await turns(service)
    assert (two.reused_tokens, service.stats()["records"]) == (0, 0)


async def test_a_kept_drafting_session_has_the_extended_prompt(turns, engine):
    _, two = await turns(SpeculatorService(engine, "h:1"), decode=DecodeOptions(draft_context="kept"))
    assert two.kept.session.id == "r2"
    assert not two.kept.is_ascending
    drafts = DraftService(engine)
    assert drafts.begin(two.kept, "kept", None)
    await drafts._sessions["r2"].work
    late = int(two.late.sum())
    assert engine.sessions["r2"] == (len(SECOND) + late, SECOND[-1]), "read in the order of the cache"
    assert late
    await drafts.close()


async def test_concurrent_turns_extend_the_same_record(make_request, engine):
    """Retries and questions about one document, at once: each gets the record's prefix."""
    service = SpeculatorService(engine)
    engine.important = [5, 20, 21, 22, 23, 24, 25]
    first = await service.select(make_request(FIRST, [(0, 32), (2432, 2472)], keep_rate=0.1))
    engine.important = [60, 20, 21, 22, 23, 24, 25]
    asked = [
        replace(make_request([*SECOND[:-1], last], [(0, 32), (2502, 2542)], keep_rate=0.1), request_id=str(i))
        for i, last in enumerate((9, 9, 10, 11))
    ]
    again = await asyncio.gather(*map(service.select, asked))
    size = first.kept.positions.size
    for selection in again:
        assert selection.kept.positions[:size].tolist() == first.kept.positions.tolist()
        assert np.unique(selection.kept.positions).size == selection.kept.positions.size
    assert again[0].kept.positions.tolist() == again[1].kept.positions.tolist()


async def test_a_retried_turn_keeps_the_same_tokens(turns, make_request, engine):
    """More late chunks would fit, but the prompt of a retry does not grow."""
    service = SpeculatorService(engine)
    _, two = await turns(service)
    engine.important = [61, 62, 63, 64, 65, 66]
    request = make_request(SECOND, [(0, 32), (2502, 2542)], **RULE)
    again = await service.select(relaid(request, question=(2510, 2540)))
    assert again.kept.positions.tolist() == two.kept.positions.tolist()
    assert again.reused_tokens == two.kept.positions.size
    protected = make_request(SECOND, [(0, 32), (1000, 1010), (2502, 2542)], **RULE)
    more = await service.select(relaid(protected, question=(2510, 2540)))
    assert set(range(1000, 1010)) <= set(more.kept.positions.tolist())
