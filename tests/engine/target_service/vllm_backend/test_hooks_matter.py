"""Negative controls: with a broken hook, the comparisons of the other modules must fail."""

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt
from tests.engine.target_service.vllm_backend.broken_hooks import HashlessTarget
from tests.engine.target_service.vllm_backend.cases import (
    GREEDY,
    assert_right,
    collect,
    dense_prompt,
    kept_prompt,
    wrong_share,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.segments import in_order


@pytest.fixture(scope="module")
def engine(start: Start) -> HashlessTarget:
    return start(HashlessTarget)


async def test_positions_withheld(engine: HashlessTarget, oracle: GenerationOracle) -> None:
    await engine.falsify_positions("withheld")
    assert await wrong_share(engine, oracle, kept_prompt(900, 300, seed=1)) > 0.5
    await engine.falsify_positions("right")
    await assert_right(engine, oracle, kept_prompt(900, 300, seed=2))


async def test_decode_origin_wrong(engine: HashlessTarget, oracle: GenerationOracle) -> None:
    prompt = kept_prompt(900, 300, seed=3)
    await engine.falsify_positions("wrong_origin")
    tokens, _, _ = joined(await collect(engine, prompt))
    await engine.falsify_positions("right")
    assert oracle.logprobs(prompt, tokens)[0].argmax() == tokens[0]
    assert oracle.wrong_tokens(prompt, tokens) > GREEDY["max_tokens"] / 2


@pytest.mark.parametrize("order", [np.arange(480)[::-1], np.r_[448:480, 32:448, 0:32]], ids=["reversed", "swapped"])
async def test_without_the_hash_hook_a_whole_prompt_in_another_order_poisons_the_prefix_cache(
    engine: HashlessTarget, oracle: GenerationOracle, order: np.ndarray
) -> None:
    moved = in_order(dense_prompt(480, seed=6), order)
    plain = KeptPrompt.dense(moved.token_ids)
    await assert_right(engine, oracle, moved)
    outputs = await collect(engine, plain)
    assert outputs[0].cached_tokens == 448
    assert oracle.wrong_tokens(plain, joined(outputs)[0]) > 0


async def test_without_the_hash_hook_kv_of_other_positions_is_shared(
    engine: HashlessTarget, oracle: GenerationOracle
) -> None:
    one = kept_prompt(1200, 400, seed=4)
    moved = kept_prompt(1200, 400, seed=5)
    moved = KeptPrompt(one.token_ids, moved.positions, moved.context_length)
    await assert_right(engine, oracle, one)
    outputs = await collect(engine, moved)
    assert outputs[0].cached_tokens == 384
    assert oracle.wrong_tokens(moved, joined(outputs)[0]) > GREEDY["max_tokens"] / 2
