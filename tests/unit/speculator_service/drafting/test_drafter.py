"""The draft service's sessions: drafts continue the answer that the target's rows describe, in any order of events."""

import asyncio
import math
from dataclasses import replace

import numpy as np
import pytest

from kv_transfer.drafts import Drafted, DraftRequest
from kv_transfer.messages import SessionHandle
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from speculator_service.drafting import DrafterSession, DraftService
from tests.unit.speculator_service.drafting.draft_toys import (
    PROMPT,
    RememberingEngine,
    ToyEngine,
    ToyTarget,
    decode,
    ids,
    row,
    settle,
)

KEPT = replace(PROMPT, session=SessionHandle("here:1", "a"))
TABLE = np.random.default_rng(0).dirichlet(np.ones(8), size=8)


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


async def ask(service, *rows, **request):
    reply = await service.handle(DraftRequest(list(rows), **request))
    return reply.drafts


def opened(engine, *sessions, **options):
    service = DraftService(engine, **{"clock": Clock(), **options})
    for session in sessions:
        engine.sessions.add(session)
        service.adopt(session, ids())
    return service


async def test_rows_build_the_answer_and_drafts_continue_it():
    engine = RememberingEngine(TABLE)
    service = opened(engine, "a", "b")
    drafts = await ask(service, row("a", 0, 5), row("b", 0, 6, 7, max_drafts=1))
    assert drafts["a"].tokens.tolist() == engine.next(ids(5), 3, 0, 0).tokens.tolist()
    assert drafts["b"].tokens.tolist() == engine.next(ids(6, 7), 1, 0, 0).tokens.tolist()
    drafts = await ask(service, row("a", 1, 2, 4))
    assert engine.drafted[-1] == ("a", [5, 2, 4])
    assert drafts["a"].tokens.tolist() == engine.next(ids(5, 2, 4), 3, 0, 0).tokens.tolist()
    assert service.metrics() == {
        "rounds": 2,
        "draft_requests": 3,
        "drafts": 7,
        "opened": 2,
        "refused": 0,
        "evicted": 0,
        "lost": 0,
        "sessions": 2,
    }


async def test_no_drafts_wanted_only_tells():
    engine = ToyEngine(TABLE)
    service = opened(engine, "a")
    assert await ask(service, row("a", 0, 5, max_drafts=0)) == {}
    assert not engine.drafted
    await ask(service, row("a", 1, 6))
    assert engine.drafted[0] == ("a", [5, 6])


async def test_a_repeated_row_and_one_that_goes_back():
    engine = ToyEngine(TABLE)
    service = opened(engine, "a")
    await ask(service, row("a", 0, 5, 6, 7))
    await ask(service, row("a", 0, 5, 6, 7))
    await ask(service, row("a", 1, 6, 7, 2))
    await ask(service, row("a", 0, 5, 6))
    assert [answer for _, answer in engine.drafted] == [[5, 6, 7], [5, 6, 7], [5, 6, 7, 2], [5, 6]]
    assert service.counters["lost"] == 0


@pytest.mark.parametrize("wrong", [row("a", 2, 5), row("a", -1, 5), row("a", 1, -3)])
async def test_a_row_that_does_not_fit_loses_its_session_alone(wrong):
    engine = ToyEngine(TABLE)
    service = opened(engine, "a", "b")
    await ask(service, row("a", 0, 5), row("b", 0, 5))
    drafts = await ask(service, wrong, row("b", 1, 6), row("unknown", 0, 1))
    assert list(drafts) == ["b"]
    await settle()
    assert engine.sessions == {"b"}
    assert (service.counters["lost"], service.metrics()["sessions"]) == (2, 1)


@pytest.mark.parametrize(
    "options", [{"temperature": math.nan, "top_m": 4}, {"temperature": -1.0}, {"temperature": 1.0, "top_m": -1}]
)
async def test_an_ask_without_sense_gets_no_drafts(options):
    service = opened(ToyEngine(TABLE), "a")
    assert await ask(service, row("a", 0, 5, **options)) == {}
    assert await ask(service, row("a", 1, 5))


@pytest.mark.parametrize("options", [{"temperature": 1.0, "top_m": 0}, {"temperature": 1e-9, "top_m": 4}])
async def test_one_hot_drafts_of_a_sampled_answer_are_greedy(options):
    engine = ToyEngine(TABLE)
    service = opened(engine, "a")
    drafts = await ask(service, row("a", 0, 5, **options))
    assert drafts["a"].tokens.tolist() == engine.next(ids(5), 3, 0, 0).tokens.tolist()
    assert not drafts["a"].q_ids.size


@pytest.mark.parametrize("error", [EngineUnavailableError("down"), InvalidRequestError("no"), RuntimeError("a bug")])
async def test_an_engine_that_fails_costs_only_drafts(error):
    class Failing(ToyEngine):
        async def draft(self, session, *args, **options):
            if session == "a":
                raise error
            return await super().draft(session, *args, **options)

    service = opened(Failing(TABLE), "a", "b")
    drafts = await ask(service, row("a", 0, 5), row("b", 0, 5))
    assert list(drafts) == ["b"]


async def test_a_session_that_the_engine_lost_gets_no_drafts_any_more():
    engine = ToyEngine(TABLE)
    service = opened(engine, "a", "b")
    await ask(service, row("a", 0, 5, 6), row("b", 0, 5))
    engine.sessions.discard("a")
    for position in (2, 3):
        assert list(await ask(service, row("a", position, 7), row("b", position - 1, 7))) == ["b"]
    assert service.counters["lost"] == 2


async def test_a_prompt_that_cannot_be_read_gets_no_drafts():
    class Refusing(ToyEngine):
        async def open_session(self, session, prompt, *, cache_salt=None):
            raise InvalidRequestError("too long")

    service = opened(Refusing(TABLE))
    assert service.begin(KEPT, "kept", None)
    await settle()
    assert await ask(service, row("a", 0, 3)) == {}
    assert service.metrics()["sessions"] == 0


async def test_closed_sessions_leave_the_engine():
    engine = ToyEngine(TABLE, steps=3)
    service = opened(engine, "a", "b")
    await ask(service, row("a", 0, 5), row("b", 0, 5))
    await ask(service, closed=["a", "unknown"])
    await settle()
    assert engine.sessions == {"b"}
    assert not engine.overlaps


async def test_idle_sessions_are_evicted():
    engine, clock = ToyEngine(TABLE), Clock()
    service = opened(engine, "a", "b", "c", idle_s=10, clock=clock)
    clock.now = 5.0
    await ask(service, row("a", 0, 5))
    clock.now = 12.0
    service.evict()
    await settle()
    assert engine.sessions == {"a"}
    assert await ask(service, row("c", 0, 5)) == {}
    assert (service.counters["evicted"], service.metrics()["sessions"]) == (2, 1)


async def test_a_newer_row_stops_the_older_one():
    """A target that timed out asks again: the engine has one call at a time, and only the newest row is answered."""
    engine = ToyEngine(TABLE, steps=10**9)
    service = opened(engine, "a")
    older = asyncio.create_task(ask(service, row("a", 0, 5)))
    await settle()
    assert engine.calls["draft"] == 1
    engine.steps = 5
    drafts = await ask(service, row("a", 1, 6))
    assert list(drafts) == ["a"]
    assert await older == {}
    assert not engine.overlaps


def test_accepted_counts_the_drafts_that_were_sent_once():
    session = DrafterSession("a", 0.0)
    session.extend(row("a", 0, 5))
    assert session.accepted == 0
    session.sent = Drafted(ids(1, 2, 3))
    session.extend(row("a", 1, 1, 2, 3, 4))
    assert session.accepted == 3
    session.extend(row("a", 1, 1, 2, 3, 4))
    session.extend(row("a", 5, 1, 2))
    assert session.accepted == 3
    session.sent = Drafted(ids(1, 2, 3))
    session.extend(row("a", 7))
    session.sent = Drafted(ids(1, 2, 3))
    session.extend(row("a", 7, 2))
    assert session.accepted == 3


async def test_an_answer_goes_back_and_on_with_other_tokens():
    """vLLM's V2 runner may take back the last tokens of an answer that it stops and begins again."""
    engine = ToyEngine(TABLE)
    service = opened(engine, "s")
    await ask(service, row("s", 0, 5, 6, 7))
    drafts = await ask(service, row("s", 1, 2, 3))
    assert engine.drafted[-1] == ("s", [5, 2, 3])
    assert list(drafts) == ["s"]


async def test_greedy_answers_are_the_targets():
    drafter = 0.8 * TABLE + 0.2 * np.random.default_rng(1).dirichlet(np.ones(8), size=8)
    engine = ToyEngine(drafter)
    targets = [ToyTarget(f"s{i}", TABLE, i, max_drafts=3, temperature=0) for i in range(3)]
    service = opened(engine, *(t.session for t in targets))
    await decode(service, targets, 60)
    plain = ToyTarget("plain", TABLE, 0, max_drafts=0, temperature=0)
    while len(plain.answer) < 60:
        plain.verify(None)
    assert all(t.answer[:60] == plain.answer[:60] for t in targets)
    await service.close()


async def test_a_session_over_the_kept_prompt_has_its_cache_salt():
    """Else the KV of one tenant's session would be shared with others."""
    salts = []

    class Salted(ToyEngine):
        async def open_session(self, session, prompt, *, cache_salt=None):
            salts.append(cache_salt)
            await super().open_session(session, prompt)

    service = opened(Salted(TABLE))
    service.begin(KEPT, "kept", "tenant")
    await settle()
    assert salts == ["tenant"]
