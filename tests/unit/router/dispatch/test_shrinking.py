"""Ageing at a target that shrinks prompts in place, over mock engines in virtual time."""

from dataclasses import replace

import numpy as np

from kv_transfer.messages import KeptPrompt, Selection
from tests.unit.router.chats import Chat, result
from tests.unit.router.dispatch.test_ageing import AGE, a_long_dispatcher, an_aged_chat, dropped_of, rested, turn
from tests.unit.router.dispatch.test_catch_up import Pools, ended, is_read, simulated

BLOCK = 16
"""Of the mock target."""


class ShrinkingPools(Pools):
    """With a target that shrinks in place. forgetful: it does not, although it says so."""

    def __init__(self, forgetful=False):
        super().__init__(max_model_len=32_768)
        self.target = self.target_engine.info = replace(self.target_engine.info, shrinks_by=BLOCK)
        self.forgetful, self.shrinks = forgetful, []

    async def generate(self, request, *others):
        if request.shrink is not None:
            self.shrinks.append(request)
        given = replace(request, shrink=None) if self.forgetful else request
        async for output in super().generate(given, *others):
            yield output

    def computed(self, since=0):
        """Tokens that the reads from this one on have computed."""
        return sum(end - cached for _, end, _, cached in self.reads[since:])


@simulated
async def test_the_next_turn_finds_what_is_left_and_nothing_was_read_again():
    dispatcher, pools = a_long_dispatcher(ShrinkingPools())
    chat = await an_aged_chat(dispatcher)
    [read], check = pools.shrinks, [one for one in pools.generates if is_read(one)][-1]
    assert read.prompt.is_dense
    assert not (read.shrink.dropped % BLOCK).any()
    left = read.shrink.of(read.prompt)
    assert check.prompt.positions.tolist() == left.positions.tolist()
    assert check.prompt.kv_tag == left.kv_tag
    assert len(left.kv_tag) == 16
    # After the first answer the whole text was read; both reads after the second one compute its new tokens alone.
    first = next(place for place, (_, end, *_) in enumerate(pools.reads) if end == read.prompt.token_ids.size)
    assert pools.computed(first) < 2 * BLOCK + 128
    start, end = chat.span(2)
    third = await turn(dispatcher, chat, "third")
    assert third.headers["x-skim-reason"] == "aged"
    dropped = dropped_of(third)
    assert dropped.tolist() == np.setdiff1d(read.prompt.positions, left.positions).tolist()
    assert start <= dropped.min() < dropped.max() < end
    share = 1 - dropped.size / (end - start)
    assert AGE["keep"] <= share < AGE["keep"] + 0.05
    assert third.prompt.kv_tag == left.kv_tag
    assert third.cached >= left.token_ids.size - BLOCK
    assert ended(dispatcher) == ["done", "done"]


@simulated
async def test_control_another_target_reads_all_that_follows_again():
    dispatcher, pools = a_long_dispatcher()
    await an_aged_chat(dispatcher)
    _, whole, *_ = pools.reads[-1]
    assert pools.reads[-1][3] < whole / 2
    assert not any(one.shrink for one in pools.generates)


@simulated
async def test_results_do_not_wait_for_others():
    found = {}
    for pools in (Pools(max_model_len=32_768), ShrinkingPools()):
        dispatcher, _ = a_long_dispatcher(pools)
        chat = Chat().add("user", "Which row holds 37?").add("assistant", "I look.").add("tool", result(1))
        chat.add("assistant", "Long. " * 800)
        for number, question in enumerate(("And 74?", "And 111?")):
            chat.add("user", question)
            last = await turn(dispatcher, chat, f"turn {number}")
            await rested(dispatcher)
        found[pools.target.shrinks_by] = last.headers["x-skim-reason"]
    assert found[BLOCK] == "aged"
    assert found[0] != "aged"


@simulated
async def test_an_aged_prompt_shrinks_again_and_its_tag_is_another():
    dispatcher, pools = a_long_dispatcher(ShrinkingPools())
    chat = await an_aged_chat(dispatcher)
    chat.add("assistant", "I look again.").add("tool", result(2)).add("user", "Which row holds 148?")
    for number in range(4):
        last = await turn(dispatcher, chat, f"later {number}")
        await rested(dispatcher)
        chat.add("user", f"And which holds {number}?")
    once, twice = pools.shrinks
    assert twice.prompt.kv_tag == once.shrink.kv_tag != twice.shrink.kv_tag
    assert last.prompt.kv_tag == twice.shrink.kv_tag
    assert last.cached >= twice.shrink.of(twice.prompt).token_ids.size - BLOCK
    dropped = dropped_of(last)
    for start, end in (chat.span(2), chat.span(8)):
        inside = dropped[(dropped >= start) & (dropped < end)]
        assert inside.size > (end - start) / 2
        dropped = np.setdiff1d(dropped, inside)
    assert not dropped.size


@simulated
async def test_the_same_text_with_another_history_has_another_tag():
    """It shrinks after the second answer, or after the third."""
    tags = set()
    for ages in (1, 2):
        dispatcher, pools = a_long_dispatcher(ShrinkingPools())
        chat = Chat().add("user", "Which row holds 37?").add("assistant", "I look.").add("tool", result(1))
        for number, question in enumerate(("And 74?", "And 111?", "And 148?")):
            await turn(dispatcher, chat, f"turn {number}", age=AGE if number >= ages else None)
            await rested(dispatcher)
            chat.add("user", question)
        tags |= {one.shrink.kv_tag for one in pools.shrinks}
    assert len(tags) == 2


@simulated
async def test_what_drops_nothing_more_keeps_its_tag():
    dispatcher, pools = a_long_dispatcher(ShrinkingPools())
    chat = await an_aged_chat(dispatcher)

    async def keep_all(request, *others):
        return Selection(KeptPrompt.dense(request.token_ids), 1.0)

    pools.select = keep_all
    chat.add("assistant", "I look again.").add("tool", result(2)).add("user", "Which row holds 148?")
    for number in range(4):
        before = len(pools.reads)
        last = await turn(dispatcher, chat, f"later {number}")
        await rested(dispatcher)
        chat.add("user", f"And which holds {number}?")
    [once] = pools.shrinks
    assert last.prompt.kv_tag == once.shrink.kv_tag
    assert last.cached >= last.prompt.token_ids.size - 128
    assert pools.computed(before) < 128 + BLOCK


@simulated
async def test_what_the_target_lost_is_read_again():
    dispatcher, pools = a_long_dispatcher(ShrinkingPools(forgetful=True))
    chat = await an_aged_chat(dispatcher)
    [read] = pools.shrinks
    left = read.shrink.of(read.prompt)
    assert pools.computed() >= left.token_ids.size - int(read.shrink.dropped[0, 0])
    third = await turn(dispatcher, chat, "third")
    assert third.headers["x-skim-reason"] == "aged"
    assert third.cached >= left.token_ids.size - BLOCK
    assert ended(dispatcher) == ["done", "done"]


async def a_skimmed_turn_with_an_old_result(pools):
    dispatcher, _ = a_long_dispatcher(pools)
    chat = Chat().add("user", "Look.").add("tool", result(1)).add("assistant", "Yes.").add("user", "Why?")
    first = await turn(dispatcher, chat, "first", enabled="auto")
    assert first.outcome.mode == "speculative"
    return dispatcher, chat.add("user", "And then?")


@simulated
async def test_what_the_target_has_not_read_is_not_read_to_be_dropped():
    dispatcher, chat = await a_skimmed_turn_with_an_old_result(pools := ShrinkingPools())
    await rested(dispatcher)
    second = await turn(dispatcher, chat, "second")
    assert not pools.shrinks
    assert second.headers["x-skim-reason"] == "aged"
    assert second.cached >= second.prompt.token_ids.size - 2 * 128
    assert max(end for _, end, *_ in pools.reads) < second.ids.size - dropped_of(second).size + 128
    # It drops whole blocks, so the target can shrink what follows in place.
    dropped = dropped_of(second)
    assert not (dropped[np.r_[True, np.diff(dropped) > 1]] % BLOCK).any()
