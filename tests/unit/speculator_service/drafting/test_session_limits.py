"""More answers than the engine can draft for: the first ones keep their sessions and drafts, the others run without."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from kv_transfer.codec import decode, encode
from kv_transfer.drafts import DraftReply, DraftRequest
from kv_transfer.messages import KeptPrompt, SessionHandle
from speculator_service.drafting import DraftService
from target_service.drafting.exchange import DraftExchange
from target_service.drafting.requests import AnswerEnd, DraftedRequests, Verified
from target_service.drafting.session import DraftSettings
from tests.unit.speculator_service.drafting.draft_toys import PROMPT, ToyEngine, ids, row, settle

TABLE = np.eye(8)[np.roll(np.arange(8), -1)]  # one token can follow another, so every draft is accepted
K = 3
LIMIT = 4


class Client:
    """The target's end of a draft channel without a network."""

    def __init__(self, service):
        self.counters, self._service, self._loop = {}, service, asyncio.get_running_loop()

    def exchange(self, request):
        answered = self._service.handle(decode(encode(request), DraftRequest))
        return decode(encode(asyncio.run_coroutine_threadsafe(answered, self._loop).result(60)), DraftReply)

    def close(self):
        pass


def begun(service, name, prompt=PROMPT, context="kept"):
    """The prompt for the target after a selection, with its session if there is room for one."""
    named = replace(prompt, session=SessionHandle("here:1", name))
    return named if service.begin(named, context, None) else prompt


class Target:
    """Decodes answers together, greedily. verified: the drafts of each verification, by answer."""

    def __init__(self, service, names):
        client = Client(service)
        self._exchange = DraftExchange(lambda address: client, len(TABLE))
        self._requests = DraftedRequests(K)
        self._answers = {name: ids(1) for name in names}
        self.verified = {name: [] for name in names}
        self.drafted = set()
        for name in names:
            session = begun(service, name).session
            self.drafted |= {name} if session else set()
            own = (session.address, session.id) if session else None
            self._requests.begin(name, DraftSettings(K, False, session=own), AnswerEnd(10_000), 0.0, 0)

    async def step(self):
        batch = [Verified(name, 0, [], answer) for name, answer in self._answers.items()]
        _, asked = self._requests.plan(batch, len(batch))
        proposals = await asyncio.to_thread(self._exchange.ask, asked.values())
        for name, answer in self._answers.items():
            session = asked[name][0] if name in asked else None
            drafts = proposals[session].tokens.tolist() if session in proposals else []
            self.verified[name].append(len(drafts))
            added = [int(answer[-1] + 1 + i) % len(TABLE) for i in range(len(drafts) + 1)]
            assert drafts == added[:-1]
            self._answers[name] = np.append(answer, np.array(added, np.int32))

    def stats(self):
        return self._exchange.stats() | self._requests.stats()


async def decoded(answers, steps):
    engine = ToyEngine(TABLE)
    engine.max_sessions = LIMIT
    service = DraftService(engine)
    target = Target(service, [f"s{i}" for i in range(answers)])
    for _ in range(steps):
        await target.step()
    await settle()
    return engine, service, target


@pytest.mark.parametrize("times", [1, 2, 8])
async def test_no_session_is_opened_again_and_all_keep_their_drafts(times):
    steps = 20
    engine, service, target = await decoded(times * LIMIT, steps)
    assert len(target.drafted) == LIMIT
    for name, drafts in target.verified.items():
        assert drafts[2:] == [K if name in target.drafted else 0] * (steps - 2)
    assert engine.calls["open"] == LIMIT
    counts, stats = service.metrics(), target.stats()
    assert (counts["opened"], counts["refused"], counts["sessions"]) == (LIMIT, (times - 1) * LIMIT, LIMIT)
    assert (counts["evicted"], counts["lost"]) == (0, 0)
    assert stats["no_session"] == (times - 1) * LIMIT * steps
    await service.close()


async def test_the_next_answer_gets_the_place_of_a_session_that_ended():
    engine = ToyEngine(TABLE)
    engine.max_sessions = 2
    service = DraftService(engine)
    assert [bool(begun(service, name).session) for name in "abc"] == [True, True, False]
    await service.handle(DraftRequest(closed=["a"]))
    assert [bool(begun(service, name).session) for name in "de"] == [True, False]
    await settle()
    assert engine.sessions == {"b", "d"}


async def test_sessions_fill_the_tokens_that_the_engine_has_for_them():
    """Answers grow, so an equal prompt may find no room later. One session always finds some."""
    engine = ToyEngine(TABLE)
    engine.max_session_tokens = 10
    service, short, long = DraftService(engine), KeptPrompt.dense([1, 2, 3]), KeptPrompt.dense(range(1, 21))
    assert begun(service, "long", long).session
    assert not begun(service, "a", short).session
    await service.handle(DraftRequest(closed=["long"]))
    assert [bool(begun(service, name, short).session) for name in "abcd"] == [True, True, True, False]
    await service.handle(DraftRequest([row("b", 0, *[5] * 5)], closed=["a"]))
    assert not begun(service, "e", short).session


async def test_a_session_over_the_whole_prompt_counts_all_of_its_tokens_and_leaves_the_engine_if_refused():
    engine = ToyEngine(TABLE)
    engine.max_session_tokens = 10
    service, sparse = DraftService(engine), KeptPrompt(ids(1, 2), ids(0, 5), 6)
    engine.sessions |= {"a", "b"}
    assert [bool(begun(service, name, sparse, "full").session) for name in "ab"] == [True, False]
    await settle()
    assert engine.sessions == {"a"}
    assert begun(service, "c", sparse).session, "over the kept prompt it has two tokens"


@pytest.mark.parametrize("shares", [False, True])
async def test_the_kept_prompt_is_read_at_once_or_behind_an_answer_that_goes_on(shares):
    """A read beside the target's own delays the first token where both share a device."""
    engine = ToyEngine(TABLE)
    engine.shares_device = shares
    service, answer = DraftService(engine), [5, 1, 2, 3]
    assert begun(service, "a", KeptPrompt.dense([1] * 100)).session
    for size in (1, 3, 4):
        await settle()
        assert engine.calls["open"] == (0 if shares else 1)
        await service.handle(DraftRequest([row("a", 0, *answer[:size])]))
    await settle()
    reply = await service.handle(DraftRequest([row("a", 4, 3)]))
    assert engine.calls["open"] == 1
    assert list(reply.drafts) == ["a"]
    begun(service, "short", KeptPrompt.dense([1] * 100))
    await settle()
    await service.handle(DraftRequest([row("short", 0, 5)], closed=["short"]))
    await settle()
    assert engine.calls["open"] == (1 if shares else 2)
    await service.close()
