"""Targets with M-RoPE: text has the same position three times, and all three are restored.

Qwen3.5 is tested without its linear attention, whose kernels on CPU compute in bfloat16, and without its part for
images. Its config asks for M-RoPE, which vLLM then leaves out.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableTarget
from tests.engine.target_service.vllm_backend.cases import (
    assert_right,
    build_target,
    collect,
    dense_prompt,
    kept_prompt,
    wrong_share,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.continued import differs, rest, whole
from tests.engine.target_service.vllm_backend.drafting import PLAIN, decode, gained
from tests.engine.target_service.vllm_backend.second_turns import assert_appended_is_right
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.segments import shuffled
from tests.reference.text_alone import run_without_images

SPAWNED = True

FAMILIES: list[Any] = [
    "qwen3_vl",
    *(pytest.param(family, marks=pytest.mark.nightly) for family in ("qwen3_5", "qwen3_5_moe")),
]
NGRAM = {
    "decode": {"method": "ngram", "max_draft_tokens": 3},
    "speculative_config": {"prompt_lookup_min": 1, "prompt_lookup_max": 3},
}


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with pytest.MonkeyPatch.context() as patch:
        run_without_images(patch)
        yield build_target(tmp_path_factory.mktemp(request.param), request.param, linear_attention=False)


@pytest.fixture(scope="module")
def engine(model: str, start: Start) -> BreakableTarget:
    return start(BreakableTarget, approximate_positions=True, **NGRAM)


async def test_a_mixed_batch_is_the_oracles(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    prompts = [
        kept_prompt(900, 300, seed=1),
        dense_prompt(500, seed=2),
        kept_prompt(7900, 700, seed=3),
        shuffled(kept_prompt(900, 300, seed=4)),
    ]
    await asyncio.gather(*(assert_right(engine, oracle, p, f"mixed-{i}") for i, p in enumerate(prompts)))


async def test_a_late_chunk_and_a_second_turn(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    await assert_appended_is_right(engine, oracle)


async def test_an_answer_that_another_replica_began(engine: BreakableTarget) -> None:
    answer = await whole(engine, kept_prompt(500, 150, seed=5), "whole", frequency_penalty=0.8)
    cuts = answer.cuts[::20]
    rests = await asyncio.gather(*(rest(engine, answer, cut, "cut") for cut in cuts))
    assert [differs(answer, cut, outputs) for cut, outputs in zip(cuts, rests, strict=True)] == [[]] * len(cuts)


async def test_drafts_are_verified_at_their_positions(engine: BreakableTarget) -> None:
    ids = np.tile(kept_prompt(900, 75, seed=6).token_ids, 4)
    prompt = KeptPrompt(ids, kept_prompt(900, 300, seed=6).positions, 900)
    plain = await decode(engine, prompt, "plain", PLAIN)
    before = await engine.decode_stats()
    assert joined(await collect(engine, prompt))[0] == plain
    assert gained(before, await engine.decode_stats())["drafts"] > 10


@pytest.mark.nightly
async def test_a_split_target(model: str, oracle: GenerationOracle, start: Start, device: str) -> None:
    pytest.importorskip("nixl", reason="KV blocks cross by NIXL, of the extra `split`")
    from tests.engine.target_service.vllm_backend.test_split_target import Halves

    options: dict[str, Any] = {"approximate_positions": True}
    if device == "cpu":
        options["kv_transfer_config"] = {"kv_buffer_device": "cpu"}
    halves = Halves(start(kv_role="prefill", **options), start(kv_role="decode", **options))
    prompt = kept_prompt(900, 300, seed=7)
    outputs = await halves.answer(prompt, "split")
    assert oracle.wrong_tokens(prompt, joined(outputs)[0]) == 0
    assert outputs[0].cached_tokens == 300
    assert halves.decode.transfer_stats()["transfers"] == 1


async def test_control_positions_withheld(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    await engine.falsify_positions("withheld")
    assert await wrong_share(engine, oracle, kept_prompt(900, 300, seed=8)) > 0.5
    await engine.falsify_positions("right")
    await assert_right(engine, oracle, kept_prompt(900, 300, seed=9))


async def test_control_one_of_three_positions_restored(engine: BreakableTarget, oracle: GenerationOracle) -> None:
    """This must be the last test of the module."""
    if not engine._engine.vllm_config.model_config.uses_mrope:
        pytest.skip("vLLM gives checkpoints of Qwen3.5 without a part for images one position per token")
    await engine.restore_one_row()
    assert await wrong_share(engine, oracle, kept_prompt(900, 300, seed=10)) > 0.5
