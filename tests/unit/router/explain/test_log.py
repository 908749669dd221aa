"""What the explain view holds, for how long, and where it looks for what it does not hold."""

from dataclasses import replace

import httpx
import numpy as np
import pytest
from fastapi import FastAPI

from kv_transfer.layout import NO_LAYOUT
from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import SelectionOptions
from router.explain.explained import Explained
from router.explain.log import CALL_SHARE, Entry, RequestLog
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.router.conftest import LocalPools
from tests.unit.router.dispatching import prompt, run


def entry(tokens=10):
    selection = Selection(KeptPrompt.dense(range(tokens)), 1.0)
    return Entry(tokens, Explained(selection, SelectionOptions(), NO_LAYOUT))


async def test_the_explanation_adds_up():
    ran = await run(pools := LocalPools(), prompt(), keep_rate=0.1, protected_spans=[[0, 3]])
    entry = ran.dispatcher.log.get("r").as_json()
    positions = np.concatenate([np.arange(start, end) for start, end in entry["kept_spans"]])
    assert positions.tolist() == pools.generates[0].prompt.positions.tolist()
    assert all(end < start for (_, end), (start, _) in zip(entry["kept_spans"], entry["kept_spans"][1:], strict=False))
    assert (entry["prompt_tokens"], entry["kept_tokens"]) == (600, positions.size)
    assert entry["keep_rate"] == positions.size / 600
    assert entry["protected_spans"] == [[0, 3]]
    assert entry["options"]["keep_rate"] == 0.1
    assert len(entry["look_ahead_tokens"]) == 8
    assert entry["segments"] is None
    assert entry["decision"] == {"reason": "requested", "catch_up": "off;reason=no-room"}
    # Numbers and names only: the view must not show another client's prompt.
    assert "prompt" not in entry
    assert not any(isinstance(value, str) for value in entry.values())


def test_the_log_holds_the_latest_selections():
    log = RequestLog(max_calls=2)
    for number, name in enumerate(("a-0", "b_0", "c")):
        log.add(name, entry(10 + number))
    assert log.get("a") is None
    assert log.get("b").prompt_tokens == 11
    assert log.get("c").prompt_tokens == 12


def test_the_log_is_bounded_in_bytes():
    one = entry(100).explained.nbytes
    assert one == 2 * 4 * 100  # ids and positions of the kept tokens
    made = entry(100).explained
    layout = layout_of(regions=[(0, 1, 0.5)] * 9, units=range(50))
    assert replace(made, layout=layout).nbytes == one + 9 * (2 * 4 + 4) + 4 * 50
    log = RequestLog(max_bytes=3 * (one + 2))  # with the names of the call and of its prompt
    for name in "abcd":
        log.add(name, entry(100))
        log.add(name, entry(100))  # the same again: not counted twice
    assert [log.get(name) is None for name in "abcd"] == [True, False, False, False]
    log.add("large", entry(301))
    assert [log.get(name) for name in ("b", "c", "d", "large")] == [None] * 4


def test_a_call_has_one_place_and_a_key_its_share():
    log = RequestLog(max_calls=4)
    for key in ("a", "b"):
        log.add("old", entry(), key)
    for number in reversed(range(1024)):  # in any order
        log.add(f"many-{number}", entry(), "a", "many-0")
    assert all(log.get(f"many-{number}", "a") for number in range(1024))
    assert log.get("many", "a") is log.get("many-0", "a")
    assert log.get("old", "a")
    for number in range(100):
        log.add(f"r{number}", entry(), "a")
    assert log.get("old", "b"), "a key removes its own entries"
    assert log.get("old", "a") is log.get("many-5", "a") is None


def test_a_call_of_many_prompts_has_a_part_of_the_log():
    log = RequestLog(max_bytes=CALL_SHARE * 4000)
    for number in range(100):
        log.add(f"many-{number}", entry(10), call="many-0")  # 80 bytes and the name
    held = [number for number in range(100) if log.get(f"many-{number}")]
    assert held == [*range(46)]


@pytest.fixture
async def other_routers():
    """A client of one router that knows another one; the ids that the other was asked for."""
    others, asked, log = RequestLog(), [], RequestLog()
    log.add("mine", entry(10))
    others.add("theirs", entry(20))

    async def ask(part, request_id, key):
        asked.append(request_id)
        return await others.held(part, request_id, key)

    app = FastAPI()
    log.add_routes(app, ask)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://router") as client:
        yield client, asked


async def test_a_router_finds_what_another_one_holds(other_routers):
    client, asked = other_routers
    assert (await client.get("/v1/requests/mine/selection")).json()["prompt_tokens"] == 10
    assert asked == []
    assert (await client.get("/v1/requests/theirs/selection")).json()["prompt_tokens"] == 20
    assert asked == ["theirs"]


async def test_what_no_router_holds_is_a_404_with_one_sentence(other_routers):
    client, _ = other_routers
    answer = await client.get("/v1/requests/gone/selection")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == (
        "no selection is held for gone: it ran dense, is too old, or its router is gone"
    )


def test_two_keys_may_choose_the_same_id():
    log = RequestLog()
    log.add("x", entry(10), "a")
    log.add("x", entry(20), "b")
    assert [log.get("x", key).prompt_tokens for key in "ab"] == [10, 20]
    assert log.get("x", "c") is log.get("x") is None


async def test_without_other_routers_only_its_own_log_is_asked():
    log, app = RequestLog(), FastAPI()
    log.add_routes(app)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://router") as client:
        assert (await client.get("/v1/requests/x/selection")).status_code == 404
        log.add("x", entry(7))
        assert (await client.get("/v1/requests/x/selection")).json()["kept_tokens"] == 7
