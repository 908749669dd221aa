"""A prompt that was shrunk in place: the next turn attends to the KV of the whole text, without the dropped blocks."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from kv_transfer.messages import GenerateRequest, KeptPrompt, Shrink
from kv_transfer.sampling import READ_ONLY
from skim_common.errors import InvalidRequestError
from target_service.vllm_backend.shrinking import shrinks_by
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableTarget
from tests.engine.target_service.vllm_backend.cases import (
    TOLERANCE,
    VOCABULARY,
    assert_right,
    cached_tokens,
    collect,
    dense_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.vllm_hooks.test_partial_blocks import config
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import random_prompt

BLOCK, SIZE = 32, 700
WHOLE = SIZE // BLOCK * BLOCK
DROPPED = [[64, 192], [256, 320]]
BLOCKS = 110
"""Of the cache, with vLLM's null block."""


@pytest.fixture(scope="module", params=["sync", pytest.param("async", marks=pytest.mark.nightly)])
def engine(start: Start, request: pytest.FixtureRequest) -> BreakableTarget:
    """With one or the other scheduler."""
    own = request.param == "async"
    target = start(BreakableTarget, num_gpu_blocks_override=BLOCKS, max_model_len=1000, async_scheduling=own)
    assert target._engine.vllm_config.scheduler_config.async_scheduling == own
    return target


@pytest.fixture(autouse=True)
async def empty(engine: BreakableTarget) -> None:
    assert await engine._engine.reset_prefix_cache()


def a_shrink(name: str, dropped: Sequence[Sequence[int]] = DROPPED) -> Shrink:
    return Shrink(np.array(dropped, np.int32), name.encode().ljust(16))


async def read(engine: BreakableTarget, prompt: KeptPrompt, name: str, shrink: Shrink | None = None) -> int:
    """Read a prompt, and shrink it. Returns the tokens that were cached."""
    request = GenerateRequest(name, prompt, dict(READ_ONLY), shrink=shrink)
    [output] = [output async for output in engine.generate(request)]
    return output.cached_tokens


def new_text(prompt: KeptPrompt, seed: int, size: int = 40) -> KeptPrompt:
    return prompt.extended(random_prompt(size, seed=seed, vocab_size=VOCABULARY))


async def next_turn(engine: BreakableTarget, whole: KeptPrompt, shrink: Shrink, seed: int) -> tuple[KeptPrompt, int]:
    """What is left of a prompt, with a new text, and how much of it is cached."""
    later = new_text(shrink.of(whole), seed)
    outputs = await collect(engine, later, "probe", max_tokens=1)
    return later, outputs[0].cached_tokens


async def difference(
    engine: BreakableTarget,
    oracle: GenerationOracle,
    whole: KeptPrompt,
    later: KeptPrompt,
    hidden: Sequence[tuple[int, Sequence[Sequence[int]]]],
) -> float:
    """The largest difference between the log probabilities of an answer to `later` and those of the oracle, which reads
    the whole text with `hidden`. Infinite if a token is not the oracle's."""
    tokens, logprobs, _ = joined(await collect(engine, later, "turn", max_tokens=24))
    text = whole.extended(later.token_ids[later.positions >= whole.context_length])
    ours = oracle.shrunk_logprobs(text, hidden, tokens)
    if ours.argmax(-1).tolist() != tokens:
        return float("inf")
    return max(abs(c.logprob - ours[step, c.token_id].item()) for step, told in enumerate(logprobs) for c in told)


async def test_the_next_turn_is_the_oracles_and_nothing_is_read_again(
    engine: BreakableTarget, oracle: GenerationOracle
) -> None:
    assert engine.info.shrinks_by == BLOCK
    whole, shrink = dense_prompt(SIZE, seed=1), a_shrink("first")
    await read(engine, whole, "the turn before")
    [known] = cached_tokens(engine, SIZE - 1)  # the last token of a prompt is always computed
    assert await read(engine, whole, "shrinks", shrink) == known
    later, cached = await next_turn(engine, whole, shrink, 11)
    assert cached == WHOLE - 192
    assert await difference(engine, oracle, whole, later, [(WHOLE, DROPPED)]) <= TOLERANCE
    # The tokens of what is left alone are another prompt: the two are told apart.
    plain = replace(later, kv_tag=b"")
    assert await difference(engine, oracle, whole, later, [(0, DROPPED)]) > TOLERANCE
    await assert_right(engine, oracle, plain, "plain")
    # The whole text is still there, and exact.
    assert await read(engine, whole, "whole") == known
    await assert_right(engine, oracle, new_text(whole, 12), "dense")


async def test_it_shares_no_kv_with_a_plain_read_or_another_history(
    engine: BreakableTarget, oracle: GenerationOracle
) -> None:
    """Neither whole blocks nor parts of blocks, whichever is first."""
    whole, shrink = dense_prompt(SIZE, seed=2), a_shrink("tagged")
    plain = replace(new_text(shrink.of(whole), 21), kv_tag=b"")
    assert await read(engine, plain, "plain first") == 0
    assert await read(engine, whole, "shrinks", shrink) == DROPPED[0][0]
    later, cached = await next_turn(engine, whole, shrink, 21)
    assert cached == WHOLE - 192
    assert await difference(engine, oracle, whole, later, [(WHOLE, DROPPED)]) <= TOLERANCE
    assert await read(engine, replace(later, kv_tag=b"another".ljust(16)), "another") == DROPPED[0][0]
    other = a_shrink("tagged", [[64, 160]])
    _, cached = await next_turn(engine, whole, other, 21)
    assert cached == DROPPED[0][0], "other drops"
    again = replace(new_text(shrink.of(whole), 22), kv_tag=b"")
    assert await read(engine, again, "plain later") == cached_tokens(engine, shrink.of(whole).token_ids.size)[0]
    await assert_right(engine, oracle, plain, "plain")


async def test_control_without_the_tag_a_plain_read_is_found(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    whole, shrink = dense_prompt(SIZE, seed=2), a_shrink("untagged")
    await engine.forget_tags(True)
    await read(engine, replace(new_text(shrink.of(whole), 21), kv_tag=b""), "plain first")
    await read(engine, whole, "shrinks", shrink)
    later, cached = await next_turn(engine, whole, shrink, 21)
    assert cached >= WHOLE - 192
    assert await difference(engine, oracle, whole, later, [(WHOLE, DROPPED)]) > TOLERANCE
    await engine.forget_tags(False)


async def test_control_keys_on_wrong_blocks_are_seen(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    whole, shrink = dense_prompt(SIZE, seed=3), a_shrink("wrong")
    await engine.shrink_wrongly(True)
    await read(engine, whole, "shrinks", shrink)
    await engine.shrink_wrongly(False)
    later, cached = await next_turn(engine, whole, shrink, 31)
    assert cached == WHOLE - 192
    assert await difference(engine, oracle, whole, later, [(WHOLE, DROPPED)]) > TOLERANCE


async def test_a_shrunk_prompt_shrinks_again(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    whole, once = dense_prompt(SIZE, seed=4), a_shrink("once", [[64, 192]])
    await read(engine, whole, "shrinks", once)
    later = new_text(once.of(whole), 41, 100)
    text = whole.extended(later.token_ids[-100:])
    # Its tokens 128 to 192 are those at 256 to 320 of the text.
    twice = a_shrink("twice", [[128, 192]])
    assert await read(engine, later, "shrinks again", twice) == WHOLE - 128
    last, cached = await next_turn(engine, later, twice, 42)
    assert cached == (SIZE + 100) // BLOCK * BLOCK - 192
    hidden = [(WHOLE, [[64, 192]]), ((SIZE + 100) // BLOCK * BLOCK, [[256, 320]])]
    assert await difference(engine, oracle, text, last, hidden) <= TOLERANCE


async def test_of_two_conversations_with_one_beginning_one_shrinks(
    engine: BreakableTarget, oracle: GenerationOracle
) -> None:
    begin = dense_prompt(400, seed=5)
    one, other = new_text(begin, 51, 300), new_text(begin, 52, 300)
    await read(engine, one, "one")
    assert await read(engine, other, "other") >= 384
    shrink = a_shrink("one of two")
    await read(engine, one, "shrinks", shrink)
    later, cached = await next_turn(engine, one, shrink, 53)
    assert cached == WHOLE - 192
    apart = new_text(other, 54)
    assert (await collect(engine, apart, "probe", max_tokens=1))[0].cached_tokens >= WHOLE
    # Both at once, on the same blocks.
    found, _ = await asyncio.gather(
        difference(engine, oracle, one, later, [(WHOLE, DROPPED)]), assert_right(engine, oracle, apart, "apart")
    )
    assert found <= TOLERANCE


async def test_evicted_blocks_lose_both_keys(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    """The end of a prompt is evicted first. What is lost is read again, without the dropped blocks in view."""
    whole, shrink, found = dense_prompt(SIZE, seed=6), a_shrink("evicted"), []
    for evicted in (0, 10, 28):
        assert await engine._engine.reset_prefix_cache()
        await read(engine, whole, "shrinks", shrink)
        free = BLOCKS - 4 - (WHOLE // BLOCK + 1)
        sizes = free // 3, free // 3, free - free // 3 * 2, evicted
        for seed, size in enumerate(sizes, 100):
            if size:
                await read(engine, dense_prompt(size * BLOCK, seed=seed), "others")
        later, cached = await next_turn(engine, whole, shrink, 61)
        found.append(cached)
        place = int(later.positions[cached])
        assert await difference(engine, oracle, whole, later, [(place, DROPPED)]) <= TOLERANCE
    assert found[0] == WHOLE - 192 > found[1] > DROPPED[0][0]
    assert found[2] == 0


async def test_a_reset_cache_has_nothing_of_it(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    whole, shrink = dense_prompt(SIZE, seed=7), a_shrink("reset")
    await read(engine, whole, "shrinks", shrink)
    assert await engine._engine.reset_prefix_cache()
    later, cached = await next_turn(engine, whole, shrink, 71)
    assert cached == 0
    await assert_right(engine, oracle, later)


@pytest.mark.parametrize(
    ("setting", "caching", "found"),
    [
        ({}, True, 32),
        ({"async_scheduling": True, "method": "custom_class"}, True, 32),
        ({}, False, 0),
        ({"window": 512, "one_group": True}, True, 0),
        ({"state_space": True}, True, 0),
        ({"transfer": object()}, True, 0),
        ({"parallel": 2}, True, 0),
        ({"method": "eagle3"}, True, 0),
    ],
)
def test_which_targets_shrink_in_place(setting: dict, caching: bool, found: int) -> None:
    cache = SimpleNamespace(enable_prefix_caching=caching, block_size=32)
    assert shrinks_by(SimpleNamespace(**vars(config(**setting)), cache_config=cache)) == found


@pytest.mark.parametrize("dropped", [[[60, 192]], [[64, 100]], [[672, 704]], [[64, 64]], [[64, 128], [128, 192]], []])
async def test_only_whole_blocks_of_the_prompt_can_be_dropped(engine: BreakableTarget, dropped: list) -> None:
    spans = np.array(dropped, np.int32).reshape(-1, 2)
    with pytest.raises(InvalidRequestError, match="sorted spans of whole blocks of 32 tokens"):
        await read(engine, dense_prompt(SIZE), "refused", Shrink(spans, b"tag"))
