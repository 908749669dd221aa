"""Which chunks a recall adds, where they go, and how an answer goes on after it."""

import numpy as np
import pytest

from cluster.in_process.async_pair import AsyncPair, EngineSettings
from cluster.in_process.prompts import RenderedPrompt, no_spans
from evals.mid_answer.recall import INTERVAL, Attempt, Recaller, Trigger, missing_chunks, with_chunks
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from speculator_service.engine import Drafted
from target_service.mock_engine import mock_tokens
from tests.unit.evals.conftest import MODELS


def kept(*positions: int) -> KeptPrompt:
    order = np.array(positions, np.int32)
    return KeptPrompt(order + 100, order, 20)


def test_the_best_droppable_chunks_that_are_not_kept_are_missing():
    importance = np.zeros(24, np.float32)
    importance[:4], importance[4:8], importance[8:12], importance[16:] = 9, 2, 1, 9
    protected = np.array([[0, 1], [16, 20]], np.int32)
    assert missing_chunks(importance, kept(0, 1, 16, 17), protected, 4) == (1, 2)
    assert missing_chunks(importance, kept(0, 4, 5, 6, 7, 16), protected, 4) == (2,)
    assert missing_chunks(importance, kept(0, 4, 5, 6, 8, 9, 10, 11), protected, 4) == (1,), "one token is dropped"
    assert missing_chunks(importance, kept(*range(4, 12)), protected, 4) == ()
    assert missing_chunks(importance, kept(*range(4, 12)), no_spans(), 4) == (0, 4), "without protection they count"


def test_late_chunks_stand_before_the_question():
    ids = np.arange(20, dtype=np.int32) + 100
    extended, stays = with_chunks(kept(0, 1, 9, 16, 17, 18, 19), ids, (1, 2), 16, 4)
    assert extended.positions.tolist() == [0, 1, 9, 4, 5, 6, 7, 8, 10, 11, 16, 17, 18, 19]
    assert extended.token_ids.tolist() == [100 + p for p in extended.positions.tolist()]
    assert stays == 3


@pytest.fixture
async def pair():
    made = AsyncPair(
        speculator=EngineSettings(str(MODELS / "speculator"), "mock"),
        target=EngineSettings(str(MODELS / "target"), "mock"),
    )
    yield made
    await made.close()


IDS = np.arange(320, dtype=np.int32) % 200 + 5
PROTECTED = np.array([[0, 1], [288, 320]], np.int32)


def start(*chunks: int) -> KeptPrompt:
    """These chunks of a prompt of ten. The last one is the question."""
    positions = np.concatenate([np.arange(32 * c, 32 * c + 32, dtype=np.int32) for c in chunks])
    return KeptPrompt(IDS[positions], positions, 320)


async def answer(pair: AsyncPair, trigger: Trigger, kept_chunks: tuple[int, ...]) -> Attempt:
    await pair.speculator.score("whole", IDS, SelectionOptions(), keep_session=True)
    recaller = Recaller(pair, SelectionOptions(), max_tokens=24)
    return await recaller.answer(RenderedPrompt(IDS, PROTECTED, (288, 320)), start(*kept_chunks, 9), "whole", trigger)


async def test_an_answer_goes_on_with_the_recalled_chunks(pair):
    """The mock's scores depend on the token ids alone, so there is one recall, of both best chunks."""
    whole = await pair.speculator.score("scores", IDS, SelectionOptions())
    best = missing_chunks(whole.importance.numpy(), start(0, 9), PROTECTED, 32)
    attempt = await answer(pair, "interval", (0,))
    [recall] = attempt.recalls
    assert recall.at == INTERVAL
    assert recall.chunks == best
    assert recall.read == 32 * len(best) + 32 + INTERVAL, "late chunks, question and answer so far; not the chunk 0"
    assert attempt.kept.positions.tolist() == start(0, *best, 9).positions.tolist()
    assert attempt.drafted == 24
    assert attempt.looks == 2, "after the last block there is nothing to look for"


async def test_nothing_is_recalled_that_is_kept(pair):
    attempt = await answer(pair, "interval", tuple(range(9)))
    assert attempt.recalls == ()
    assert attempt.looks == 2


async def test_a_drafter_that_agrees_asks_for_no_look(pair, monkeypatch):
    assert (await answer(pair, "rejection", (0,))).recalls, "the mocks do not agree"

    async def draft(session, answered, count):
        return Drafted(mock_tokens(start(0, 9), 24, pair.target.info.vocab_size)[answered.size :][:count])

    monkeypatch.setattr(pair.speculator, "draft", draft)
    attempt = await answer(pair, "rejection", (0,))
    assert (attempt.recalls, attempt.looks) == ((), 0)
    assert attempt.accepted == attempt.drafted == 24
