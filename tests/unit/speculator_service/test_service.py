import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from kv_transfer.errors import InvalidRequestError, SkimError
from kv_transfer.messages import ModelInfo
from kv_transfer.options import DecodeOptions
from speculator_service.engine import Scores
from speculator_service.mock_engine import MockSpeculator
from speculator_service.service import SpeculatorService

INFO = ModelInfo("m", "LlamaForCausalLM", 1024, "f", max_model_len=50, max_position=50, engine="script")


class ScriptedEngine:
    """Returns fixed scores."""

    info = INFO
    supports_drafts = True
    cache_tokens = 0

    def __init__(self, importance, look_ahead_tokens=()):
        self.scores = Scores(torch.tensor(importance), list(look_ahead_tokens), {"queue": 1.0, "speculate": 2.0})
        self.calls = 0
        self.asked = {}
        self.opened = []

    async def score(self, request_id, token_ids, options, **asked):
        self.calls += 1
        self.asked = asked
        return self.scores

    async def open_session(self, session, prompt, *, cache_salt=None):
        self.opened.append((session, prompt))


async def test_selection_of_a_scored_prompt(make_request):
    # Kept are [0, 1, 3, 6, 7] and the last token. The next token has position 10, no matter what was dropped.
    service = SpeculatorService(ScriptedEngine([0.9, 0.8, 0, 0.7, 0, 0, 0.6, 0.5, 0, 0.1], [41, 42]))
    selection = await service.select(
        make_request(range(100, 110), keep_rate=0.5, granularity="token", protect_last=1, look_ahead=2)
    )
    kept = selection.kept
    assert kept.positions.tolist() == [0, 1, 3, 6, 7, 9]
    assert kept.token_ids.tolist() == [100, 101, 103, 106, 107, 109]
    assert kept.context_length == 10
    assert kept.look_ahead_tokens.tolist() == [41, 42]
    assert kept.positions.dtype == kept.token_ids.dtype == kept.look_ahead_tokens.dtype == np.int32
    assert kept.session is None
    assert selection.coverage == pytest.approx(1.0)
    assert selection.importance is None
    assert selection.timings["queue"] == 1.0
    assert selection.timings["speculate"] == 2.0
    assert set(selection.timings) == {"queue", "speculate", "select"}


async def test_the_engine_learns_where_the_question_is(make_request):
    engine = ScriptedEngine([0.5, 0.25, 0.5])
    await SpeculatorService(engine).select(replace(make_request([7, 8, 9]), question=(1, 3)))
    assert engine.asked["question"] == (1, 3)
    with pytest.raises(ValueError, match="question must be a range inside the 3 tokens"):
        replace(make_request([7, 8, 9]), question=(2, 4))


async def test_the_mean_importance_of_each_chunk_comes_with_every_selection(make_request):
    service = SpeculatorService(ScriptedEngine([0.5, 0.25, 1.0, 0.0, 0.75]))
    selection = await service.select(make_request(range(5), chunk_size=2))
    assert selection.chunk_scores.dtype == np.float32
    assert selection.chunk_scores.tolist() == [0.375, 0.5, 0.75]


async def test_importance_only_when_asked(make_request):
    service = SpeculatorService(ScriptedEngine([0.5, 0.25]))
    selection = await service.select(make_request([7, 8], return_importance=True))
    assert selection.importance.dtype == np.float32
    assert selection.importance.tolist() == [0.5, 0.25]


async def test_protected_spans_are_kept(make_request):
    service = SpeculatorService(ScriptedEngine([1.0, 0, 0, 0, 0, 0]))
    options = {"granularity": "token", "keep_rate": 0.1, "protect_last": 1}
    plain = await service.select(make_request(range(6), **options))
    protected = await service.select(make_request(range(6), [(2, 4)], **options))
    assert plain.kept.positions.tolist() == [0, 5]
    assert protected.kept.positions.tolist() == [0, 2, 3, 5]


async def test_keeping_everything_is_dense(make_request):
    selection = await SpeculatorService(ScriptedEngine([0.1, 0.2, 0.3])).select(make_request([1, 2, 3], keep_rate=1.0))
    assert selection.kept.is_dense


@pytest.mark.parametrize(
    ("address", "decode", "kept_by"),
    [
        (None, DecodeOptions(), None),
        ("h:1", None, None),
        ("h:1", DecodeOptions(), "score"),
        ("h:1", DecodeOptions(draft_context="kept"), "open_session"),
    ],
)
async def test_a_session_is_kept_if_the_request_asks_for_drafts(make_request, address, decode, kept_by):
    engine = ScriptedEngine([1.0, 0, 0.5])
    request = replace(make_request([7, 8, 9], granularity="token", keep_rate=0.5, protect_last=1), decode=decode)
    selection = await SpeculatorService(engine, address).select(request)
    session = selection.kept.session
    assert (session and (session.address, session.id)) == (kept_by and ("h:1", "r"))
    assert engine.asked["keep_session"] == (kept_by == "score")
    assert [(name, p.positions.tolist()) for name, p in engine.opened] == (
        [("r", [0, 2])] * (kept_by == "open_session")
    )


async def test_an_engine_that_does_not_draft_keeps_no_session(make_request):
    engine = ScriptedEngine([1.0, 0, 0.5])
    engine.supports_drafts = False
    selection = await SpeculatorService(engine, "h:1").select(replace(make_request([7, 8, 9]), decode=DecodeOptions()))
    assert selection.kept.session is None
    assert not engine.asked["keep_session"]


async def test_the_cache_salt_reaches_the_engine(make_request):
    engine = ScriptedEngine([0.1, 0.2])
    await SpeculatorService(engine).select(replace(make_request([7, 8]), cache_salt="tenant"))
    assert engine.asked["cache_salt"] == "tenant"


@pytest.mark.parametrize(
    ("token_ids", "spans", "message"),
    [
        ([], [], "at least one token"),
        ([3, 1024], [], r"token id 1024 is outside .* \[0, 1024\)"),
        ([-1, 3], [], "token id -1"),
        ([1, 2, 3], [(2, 4)], r"spans: \[2, 4\] is no range inside the prompt's 3"),
        ([1, 2, 3], [(-1, 2)], r"spans: \[-1, 2\]"),
        ([1, 2, 3], [(2, 1)], r"spans: \[2, 1\]"),
        (range(43), [], "43 tokens and look_ahead is 8, but the speculator reads at most 50"),
    ],
)
async def test_bad_requests_never_reach_the_engine(make_request, token_ids, spans, message):
    engine = ScriptedEngine([0.1])
    with pytest.raises(InvalidRequestError, match=message):
        await SpeculatorService(engine).select(make_request(token_ids, spans))
    assert engine.calls == 0


async def test_longest_prompt_passes(make_request):
    selection = await SpeculatorService(ScriptedEngine([0.1] * 42)).select(make_request(range(42)))
    assert selection.kept.context_length == 42


@pytest.mark.parametrize("importance", [[0.1, math.nan], [0.1], [0.1, 0.2, 0.3]])
async def test_scores_that_make_no_sense(make_request, importance):
    with pytest.raises(SkimError, match="scores"):
        await SpeculatorService(ScriptedEngine(importance)).select(make_request([1, 2]))


async def test_cancelling_a_selection_aborts_it_in_the_engine(make_request, demo_speculator):
    engine = MockSpeculator(demo_speculator, latency_ms=60_000)
    task = asyncio.create_task(SpeculatorService(engine).select(make_request([1, 2])))
    await asyncio.sleep(0)
    assert engine.running == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (engine.started, engine.aborted, engine.running) == (1, 1, 0)


class RecordingEngine(MockSpeculator):
    """A mock whose importance is set by a test: chunks of 32 tokens, the first in the list counts most."""

    def __init__(self, model, **options):
        super().__init__(model, **options)
        self.important = []
        self.forgets = False

    async def score(self, request_id, token_ids, options, **asked):
        scores = await super().score(request_id, token_ids, options, **asked)
        importance = torch.full((token_ids.size,), 1e-3)
        for rank, chunk in enumerate(self.important):
            importance[32 * chunk : 32 * chunk + 32] = 1 - rank / 100
        cached = 0 if self.forgets else scores.cached_tokens
        return replace(scores, importance=importance, cached_tokens=cached)


ANSWER = list(range(900, 930))
FIRST = [7] * 32 + list(range(100, 900)) * 3 + [8] * 40
SECOND = [*FIRST, *ANSWER, *[9] * 40]


@pytest.fixture
def engine(demo_speculator):
    return RecordingEngine(demo_speculator, cache_tokens=100_000)


@pytest.fixture
def turns(make_request, engine):
    """Select the first and the second turn; the second question needs chunk 60. Returns both selections."""

    async def run(service, first=None, second=None, salts=(None, None), between=None, **decoding):
        first_asked = make_request(FIRST, [(0, 32), (2432, 2472)], **{"keep_rate": 0.1, **(first or {})})
        engine.important = [5, 20, 21, 22, 23, 24, 25]
        one = await service.select(replace(first_asked, cache_salt=salts[0], **decoding))
        if between:
            between()
        second_asked = make_request(SECOND, [(0, 32), (2502, 2542)], **{"keep_rate": 0.1, **(second or {})})
        engine.important = [60, 20, 21, 22, 23, 24, 25]
        asked = replace(second_asked, request_id="r2", question=(2510, 2540), cache_salt=salts[1], **decoding)
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
    asked = make_request(FIRST, [(0, 32), (2432, 2472)], keep_rate=0.1, score_queries="question")
    asked = replace(asked, question=(300, 340))
    await service.select(asked)
    again = await service.select(replace(asked, request_id="r2"))
    assert again.cached_tokens <= 300
    assert (again.reused_tokens > 0, service.stats()["records_lost"]) == (True, 0)


async def test_an_engine_without_a_prefix_cache_keeps_records(turns, demo_speculator, engine):
    """Its zero cached tokens are no evidence."""
    engine.cache_tokens, engine.forgets = 0, True
    _, two = await turns(SpeculatorService(engine))
    assert two.reused_tokens > 0


async def test_there_are_no_more_records_than_the_cache_has_tokens(turns, engine):
    engine.cache_tokens = 2000
    service = SpeculatorService(engine)
    _, two = await turns(service)
    assert (two.reused_tokens, service.stats()["records"]) == (0, 0)


async def test_a_kept_drafting_session_has_the_extended_prompt(turns, engine):
    opened = []
    plain = engine.open_session

    async def open_session(session, prompt, *, cache_salt=None):
        opened.append(prompt)
        await plain(session, prompt, cache_salt=cache_salt)

    engine.open_session = open_session
    _, two = await turns(SpeculatorService(engine, "h:1"), decode=DecodeOptions(draft_context="kept"))
    assert opened[-1] is two.kept
    assert not two.kept.is_ascending
    assert engine.sessions["r2"] == (len(SECOND), SECOND[-1])


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
    request = make_request(SECOND, [(0, 32), (2502, 2542)], keep_rate=0.1)
    again = await service.select(replace(request, question=(2510, 2540)))
    assert again.kept.positions.tolist() == two.kept.positions.tolist()
    assert again.reused_tokens == two.kept.positions.size
    protected = make_request(SECOND, [(0, 32), (1000, 1010), (2502, 2542)], keep_rate=0.1)
    more = await service.select(replace(protected, question=(2510, 2540)))
    assert set(range(1000, 1010)) <= set(more.kept.positions.tolist())


async def test_regions_are_selected_by_their_own_rates(make_request):
    engine = ScriptedEngine([0.5, 0.4, 0.3, 0.9, 0.8, 0.7, 0.6, 0.1])
    request = make_request(range(8), granularity="token", keep_rate=0.25, protect_last=1, reuse="off")
    regions = {"rate_spans": np.array([[0, 3]], np.int32), "rates": np.array([0.6], np.float32)}
    plain = await SpeculatorService(engine).select(request)
    assert plain.kept.positions.tolist() == [3, 4, 7]
    chosen = await SpeculatorService(engine).select(replace(request, **regions))
    # Two of three in the region, two of five in the rest.
    assert chosen.kept.positions.tolist() == [0, 1, 3, 4, 7]


@pytest.mark.parametrize(
    ("spans", "rates", "message"),
    [
        ([[0, 2], [1, 3]], [0.5, 0.5], "do not overlap"),
        ([[2, 3], [0, 1]], [0.5, 0.5], "sorted token ranges"),
        ([[1, 1]], [0.5], "sorted token ranges"),
        ([[0, 4]], [0.5], "inside the prompt's 3 tokens"),
        ([[-1, 2]], [0.5], "inside the prompt's 3 tokens"),
        ([[0, 2]], [0.0], "rates must be numbers > 0 and <= 1"),
        ([[0, 2]], [math.nan], "rates must be numbers > 0 and <= 1"),
    ],
)
async def test_wrong_regions_are_refused(make_request, spans, rates, message):
    request = replace(make_request([7, 8, 9]), rate_spans=np.array(spans, np.int32), rates=np.array(rates, np.float32))
    with pytest.raises(InvalidRequestError, match=message):
        await SpeculatorService(ScriptedEngine([0.5, 0.25, 0.5])).select(request)
    with pytest.raises(ValueError, match=r"must be \[R, 2\] and \[R\]"):
        replace(request, rates=np.ones(7, np.float32))


async def test_a_record_knows_the_rules_of_its_request(make_request):
    """The same prompt with the same rules keeps what it kept; other spans and rates act."""
    prompt, half = np.arange(1000, dtype=np.int32) % 500, np.array([[0, 500]], np.int32)
    engine = ScriptedEngine([0.5] * 500 + [0.25] * 500)
    engine.info = replace(INFO, max_model_len=2000, max_position=2000)
    service = SpeculatorService(engine)
    request = make_request(prompt, keep_rate=0.1)
    first = await service.select(request)
    engine.scores = Scores(torch.tensor([0.25] * 500 + [0.5] * 500), [])
    assert (await service.select(request)).kept.positions.tolist() == first.kept.positions.tolist()
    assert (first.kept.positions < 500).sum() == 4 * 32
    for rate in (0.75, 1.0):
        rules = {"rate_spans": half, "rates": np.array([rate], np.float32)}
        again = await service.select(replace(request, **rules))
        assert (again.kept.positions < 500).sum() >= 500 * rate, rate
    protected = await service.select(replace(request, protected_spans=half))
    assert set(range(500)) <= set(protected.kept.positions.tolist())
