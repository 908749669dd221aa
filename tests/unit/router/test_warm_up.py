"""Next-turn warm-up: what is read of the next turn, when, by which pool, and what the next turn then spares."""

import asyncio
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv_transfer.errors import EngineUnavailableError
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from router.context import RequestContext
from router.cost import PoolTime
from router.dispatch import Dispatcher
from router.forecast import Forecaster
from router.options import PrefillOptions, SpeculationOptions
from router.run import Prompt
from router.warm_up import MAX_RUNNING, NEXT_MESSAGE, WarmUps, continued, next_conversation, start_of_next_turn
from tests.unit.actors.local_meter import LocalMeter
from tests.unit.router.conftest import LocalPools, until

IDS = [7 + i % 900 for i in range(600)]
FOLLOWING = np.array([*IDS[:590], *range(50, 90)], np.int32)
"""The next turn renders the last ten tokens of this turn otherwise, for example without a generation prompt."""


def test_the_new_tokens_follow_what_was_kept_of_the_shared_text():
    kept = KeptPrompt(np.array([10, 12, 14, 15], np.int32), np.array([0, 2, 4, 5], np.int32), 6)
    prompt = [10, 11, 12, 13, 14, 15]
    next_turn = continued(kept, prompt, np.array([10, 11, 12, 13, 14, 77, 78, 79], np.int32))
    assert next_turn.token_ids.tolist() == [10, 12, 14, 77, 78, 79]
    assert next_turn.positions.tolist() == [0, 2, 4, 5, 6, 7]
    assert next_turn.context_length == 8
    # A dense turn stays dense.
    assert continued(KeptPrompt.dense(prompt), prompt, FOLLOWING[:20]).is_dense


def test_of_kept_tokens_in_another_order_the_first_slots_stay():
    """Only these can be in the prefix cache again: those before the first token that the texts do not share."""
    kept = KeptPrompt(np.array([10, 13, 15, 12], np.int32), np.array([0, 3, 5, 2], np.int32), 6)
    next_turn = continued(kept, [10, 11, 12, 13, 14, 15], np.array([10, 11, 12, 13, 14, 77], np.int32))
    assert next_turn.token_ids.tolist() == [10, 13, 77]
    assert next_turn.positions.tolist() == [0, 3, 5]


@given(st.data())
def test_a_continued_prompt_is_a_kept_prompt_of_the_next_turn(data):
    prompt = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    following = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=16))
    places = data.draw(st.lists(st.sampled_from(range(len(prompt))), min_size=1, unique=True))
    kept = KeptPrompt(np.array(prompt, np.int32)[places], np.array(places, np.int32), len(prompt))
    next_turn = continued(kept, prompt, np.array(following, np.int32))
    assert next_turn.token_ids.tolist() == [following[place] for place in next_turn.positions]
    assert next_turn.context_length == len(following)


def test_the_next_turn_ends_before_the_user_s_message():
    text = f"<user>Hi.</s><assistant>Ho.</s><user>{NEXT_MESSAGE}</s><assistant>"
    start = text.index(NEXT_MESSAGE)
    offsets = [(0, 6), (6, 12), (12, start), (start, start + 4), (start + 4, len(text))]
    assert start_of_next_turn(text, range(5), offsets).tolist() == [0, 1, 2]
    # A token that holds the last character before the message and its first is not certain.
    offsets[2:4] = [(12, start - 1), (start - 1, start + 4)]
    assert start_of_next_turn(text, range(5), offsets).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="not found"):
        start_of_next_turn("<user>Hi.</s>", [1], [(0, 13)])
    with pytest.raises(ValueError, match="nothing before"):
        start_of_next_turn(NEXT_MESSAGE, [1], [(0, len(NEXT_MESSAGE))])


def test_the_message_of_the_next_turn_is_a_user_s():
    roles = [message["role"] for message in next_conversation([{"role": "user", "content": "Hi."}], "Ho.")]
    assert roles == ["user", "assistant", "user"]


def caching_pools():
    return LocalPools(speculator={"cache_tokens": 4096}, target={"cache_tokens": 4096})


async def next_turn(answer):
    return FOLLOWING


async def answered(pools, *, outputs=None, warm_up=True, sampling=None, next_turn=next_turn, **options):
    """Run one prompt; wait for its warm-ups. outputs: how many the client reads; None: all. Returns the dispatcher."""
    dispatcher = Dispatcher(pools, PrefillOptions(), SpeculationOptions(), 60.0, LocalMeter(), warm_up=warm_up)
    context = RequestContext(PrefillOptions(**{"min_prompt_tokens": 256, **options}), DecodeOptions())
    prompt = Prompt(IDS, {"max_tokens": 4, **(sampling or {})}, 4, cache_salt="salt", next_turn=next_turn)
    stream = dispatcher.run("r", prompt, context)
    count = 0
    async for _ in stream:
        count += 1
        if count == outputs:
            break
    await stream.aclose()
    if dispatcher._warm_ups is not None:
        await until(lambda: not dispatcher._warm_ups._running)
    return dispatcher


def outcomes(dispatcher):
    """Pool and outcome of each warm-up, as the meter has them."""
    return [tuple(tags.values()) for _, tags in dispatcher.meter.recorded.get("skim_router_warm_ups_total", [])]


async def test_both_pools_read_the_start_of_the_next_turn():
    pools = caching_pools()
    assert sorted(outcomes(await answered(pools, keep_rate=0.1))) == [("speculator", "read"), ("target", "read")]
    asked = dict(pools.warm_ups)
    assert {(request.follows, request.cache_salt) for request in asked.values()} == {
        (pools.selects[0].request_id, "salt")
    }
    assert asked["speculator"].prompt.is_dense
    assert asked["speculator"].prompt.token_ids.tolist() == FOLLOWING.tolist()
    kept = pools.generates[0].prompt
    shared = int((kept.positions < 590).sum())
    assert asked["target"].prompt.positions.tolist() == [*kept.positions[:shared], *range(590, 630)]
    assert pools.speculator_engine.sessions.keys() == {pools.selects[0].request_id}, "the warm-up leaves no session"


async def test_of_a_dense_turn_only_the_target_reads_on():
    pools = LocalPools()
    assert outcomes(await answered(pools, enabled=False)) == [("target", "read")]
    assert pools.warm_ups[0][1].prompt.is_dense


@pytest.mark.parametrize(
    "case",
    [{"warm_up": False}, {"next_turn": None}, {"sampling": {"n": 2}}, {"outputs": 1}],
    ids=["off", "no chat", "two answers", "the client left"],
)
async def test_without_a_certain_next_turn_nothing_is_read(case):
    pools = LocalPools()
    assert outcomes(await answered(pools, **case)) == []
    assert pools.warm_ups == []


async def test_a_next_turn_that_cannot_be_rendered_or_read_harms_nobody():
    async def refuses(answer):
        raise RuntimeError("roles must alternate")

    assert outcomes(await answered(LocalPools(), next_turn=refuses)) == []
    pools = LocalPools()

    async def gone(pool, request):
        raise EngineUnavailableError("gone")

    pools.warm_up = gone
    assert outcomes(await answered(pools)) == [("speculator", "failed"), ("target", "failed")]


async def test_engines_without_a_prefix_cache_read_nothing(monkeypatch):
    pools = LocalPools()  # by default, the mock speculator caches nothing
    monkeypatch.setattr(pools.target_engine, "caches_prefixes", False)
    assert sorted(outcomes(await answered(pools))) == [("speculator", "busy"), ("target", "busy")]
    assert pools.target_engine.started == 1


async def test_more_warm_ups_than_a_router_may_have_are_dropped():
    meter, never = LocalMeter(), asyncio.Event()
    warm_ups = WarmUps(meter, Forecaster())

    async def waits(answer):
        await never.wait()

    request = SimpleNamespace(prompt=KeptPrompt.dense(IDS), follows="r")
    for _ in range(MAX_RUNNING + 1):
        warm_ups.begin(LocalPools(), request, IDS, waits, "", speculative=False)
    assert [tags for _, tags in meter.recorded["skim_router_warm_ups_total"]] == [{"pool": "target", "outcome": "busy"}]
    for task in list(warm_ups._running):
        task.cancel()
    await until(lambda: not warm_ups._running)


async def long_next_turn(answer):
    return np.array([*IDS[:590], *range(50, 360)], np.int32)


@pytest.mark.parametrize("enabled", [True, False])
async def test_the_forecast_knows_what_a_warm_up_has_read(enabled):
    """Negative control: replicas that were busy."""
    busy = caching_pools()

    async def drops(pool, request):
        return False

    busy.warm_up = drops
    turn = np.append(await long_next_turn(""), np.arange(400, 440, dtype=np.int32))
    known = []
    for pools in (caching_pools(), busy):
        dispatcher = await answered(pools, next_turn=long_next_turn, enabled=enabled)
        found = dispatcher.forecaster.look(turn, "salt", PrefillOptions(), 65)
        known.append((found.dense.tokens, found.read.tokens, found.kept.tokens))
        if enabled and pools is not busy:
            read = dict(pools.warm_ups)["target"].prompt
            assert found.kept.kept == int((read.positions < 896).sum())
        tokens = dispatcher.meter.recorded.get("skim_router_warm_up_tokens_total", [])
        warmed = ["speculator", "target"] if enabled else ["target"]
        assert sorted((tags["pool"], value) for value, tags in tokens) == (
            [] if pools is busy else [(pool, 310) for pool in warmed]
        )
        assert dispatcher.forecaster.look(turn, "other salt", PrefillOptions(), 65).read.tokens == 0
    # 512 tokens are the whole blocks that both turns share.
    assert known == ([(0, 896, 896), (0, 512, 512)] if enabled else [(896, 0, 0), (512, 0, 0)])


async def test_the_estimate_of_a_next_turn_counts_its_warm_up():
    """A speculator that has not read the answer has the turn before it in its cache only."""
    estimates = []
    for warm_up in (True, False):
        dispatcher = await answered(caching_pools(), next_turn=long_next_turn, warm_up=warm_up, enabled=True)
        forecaster = dispatcher.forecaster
        forecaster.speculator, forecaster.target = (PoolTime(asyncio.get_running_loop().time) for _ in range(2))
        for size in (200, 3000, 900):
            forecaster.speculator.measure(size, 1.0 * size, 0.0)
            forecaster.target.measure(size, 1.0 * size, 0.0)
        turn = np.append(await long_next_turn(""), np.arange(400, 440, dtype=np.int32))
        estimates.append(forecaster.look(turn, "salt", PrefillOptions(), 65).estimate)
    warm, cold = estimates
    assert warm.speculative < 0.6 * cold.speculative
    assert warm.dense == pytest.approx(cold.dense)
