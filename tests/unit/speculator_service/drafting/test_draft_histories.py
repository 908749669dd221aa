"""Random histories of one request: the drafts always continue the target's true answer."""

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.drafts import DraftRequest
from speculator_service.drafting import DraftService
from tests.unit.speculator_service.drafting.draft_toys import RememberingEngine, ids, row, settle

TABLE = np.random.default_rng(0).dirichlet(np.ones(8), size=8)

EVENTS = st.sampled_from(["accept", "accept", "accept", "repeat", "back", "tell", "hurry"])


@given(st.lists(st.tuples(EVENTS, st.integers(0, 4), st.integers(0, 7)), min_size=1, max_size=25))
def test_drafts_always_continue_the_true_answer(history):
    """For every sequence of events. Each event: (name, accepted drafts, the target's own token)."""
    asyncio.run(_live(history))


async def _live(history):
    engine = RememberingEngine(TABLE, steps=2)
    engine.sessions.add("s")
    service = DraftService(engine, clock=lambda: 0.0)
    service.adopt("s", ids())
    answer, told = [0], 0
    for event, accepted, own in history:
        if event == "repeat":
            told = max(0, told - accepted)
        wanted = 0 if event == "tell" else 3
        reply = await service.handle(DraftRequest([row("s", told, *answer[told:], max_drafts=wanted)]))
        told = len(answer)
        drafts = []
        for draft in reply.drafts.values():
            drafts = draft.tokens.tolist()
            assert drafts == engine.next(np.array(answer, np.int32), len(drafts), 0, 0).tokens.tolist()
        if event == "back":
            told = max(0, told - 1 - accepted)
            answer = answer[:told]
        answer = [*answer, *drafts[:accepted], own]
        if event != "hurry":
            await settle()
    reply = await service.handle(DraftRequest([row("s", told, *answer[told:])]))
    assert list(reply.drafts) == ["s"]
    await service.close()
    assert not engine.sessions
    assert not engine.overlaps
