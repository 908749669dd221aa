"""A split target: one engine prefills, NIXL transfers the KV blocks, another engine decodes like a whole target."""

import asyncio
from dataclasses import dataclass, replace

import numpy as np
import pytest

from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from kv_transfer.options import DecodeOptions
from skim_common.errors import InvalidRequestError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    GREEDY,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.drafting import MAX_DRAFTS, PLAIN, Case, decode, gained, with_session
from tests.reference.drafters import FakeSpeculator, knowing
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.segments import shuffled

pytest.importorskip("nixl", reason="KV blocks cross by NIXL, of the extra `split`")

pytestmark = pytest.mark.nightly

PREFILL_LEG = {"max_tokens": 1, "temperature": 0.0}


@dataclass
class Halves:
    """Both engines, one float32 model."""

    prefill: VllmTarget
    decode: VllmTarget

    async def blocks(self, prompt: KeptPrompt, name: str) -> GenerateOutput:
        """The last output of the prefill leg, which says where the blocks are."""
        leg = GenerateRequest(f"{name}-p", prompt, PREFILL_LEG, prefill_only=True)
        return [o async for o in self.prefill.generate(leg)][-1]

    async def answer(
        self, prompt: KeptPrompt, name: str, *, told: GenerateOutput | None = None
    ) -> list[GenerateOutput]:
        """All outputs of the decode leg. told: where the blocks are; by default this runs a prefill leg first."""
        told = told or await self.blocks(prompt, name)
        request = GenerateRequest(name, prompt, GREEDY, decode=PLAIN, kv_blocks=told.kv_blocks)
        return [o async for o in self.decode.generate(request)]


MODEL = {"max_position": 2048}


@pytest.fixture(scope="module")
def halves(start: Start, device: str) -> Halves:
    options = {"kv_transfer_config": {"kv_buffer_device": "cpu"}} if device == "cpu" else {}
    speculate = {"decode": {"method": "remote", "max_draft_tokens": MAX_DRAFTS}, "draft_channel": {"deadline_s": 1.0}}
    return Halves(start(kv_role="prefill", **options), start(kv_role="decode", **speculate, **options))


async def test_the_answers_are_the_oracles_and_nothing_is_prefilled_twice(halves: Halves, model: str) -> None:
    oracle = GenerationOracle(model)
    prompts = [kept_prompt(300 + 100 * i, 150 + 40 * i, seed=i) for i in range(4)] + [dense_prompt(333, seed=9)]
    prompts += [shuffled(kept_prompt(900, 300, seed=10))]
    before = halves.decode.transfer_stats()
    answers = await asyncio.gather(*(halves.answer(p, f"split-{i}") for i, p in enumerate(prompts)))
    for prompt, outputs in zip(prompts, answers, strict=True):
        tokens, logprobs, _ = joined(outputs)
        assert (len(tokens), oracle.wrong_tokens(prompt, tokens)) == (64, 0)
        assert oracle.largest_difference(prompt, tokens, logprobs) <= 1e-3
        assert outputs[0].cached_tokens == prompt.token_ids.size
    rose = gained(before, halves.decode.transfer_stats())
    assert (rose["transfers"], rose["failed_transfers"]) == (len(prompts), 0)


async def test_the_bytes_that_cross_fall_with_the_keep_rate(halves: Halves) -> None:
    crossed = {}
    for kept in (1600, 800, 160):
        before = halves.decode.transfer_stats()
        await halves.answer(kept_prompt(1600, kept, seed=kept), f"bytes-{kept}")
        crossed[kept] = gained(before, halves.decode.transfer_stats())["transferred_bytes"]
    print("bytes that crossed, by kept tokens:", crossed)
    assert crossed[160] * 10 == crossed[800] * 2 == crossed[1600] > 0


async def test_positions_must_be_right_on_the_prefilling_side(halves: Halves, model: str) -> None:
    """Negative control: blocks of the same tokens at other positions give another answer."""
    oracle = GenerationOracle(model)
    prompt = kept_prompt(900, 200, seed=21)
    renumbered = replace(KeptPrompt.dense(prompt.token_ids), context_length=200)
    told = await halves.blocks(renumbered, "renumbered")
    tokens, _, _ = joined(await halves.answer(prompt, "wrong", told=told))
    assert oracle.wrong_tokens(prompt, tokens) > 0
    # The wrong blocks are not cached under the hash of the right positions: a whole request does not find them.


async def test_drafts_are_verified_on_the_decoding_side(halves: Halves) -> None:
    prompt = kept_prompt(500, 150, seed=31)
    case = Case("drafted", prompt, joined(await halves.answer(prompt, "undrafted"))[0])
    async with FakeSpeculator(knowing({case.name: case.answer}, 0.25, 724)) as speculator:
        before = await halves.decode.decode_stats()
        told = await halves.blocks(prompt, case.name)
        options = DecodeOptions(max_draft_tokens=MAX_DRAFTS, adaptive=False)
        request = GenerateRequest(
            case.name, with_session(case, speculator), GREEDY, decode=options, kv_blocks=told.kv_blocks
        )
        outputs = [o async for o in halves.decode.generate(request)]
    assert joined(outputs)[0] == case.answer
    assert gained(before, await halves.decode.decode_stats())["accepted"] > 10


async def test_both_halves_continue_an_answer_that_has_begun(halves: Halves) -> None:
    """The tokens sent so far are prefilled with the prompt, and their KV blocks cross too."""
    prompt = kept_prompt(500, 150, seed=32)
    sampling = {**GREEDY, "frequency_penalty": 0.8}
    whole = GenerateRequest("begun", prompt, sampling, decode=PLAIN, cache_salt="begun")
    answer = joined([o async for o in halves.decode.generate(whole)])[0]
    for cut in (1, 20, 42):
        longer = prompt.extended(answer[:cut])
        told = await halves.blocks(longer, f"begun-{cut}")
        before = halves.decode.transfer_stats()
        request = GenerateRequest(
            f"begun-{cut}", longer, sampling, decode=PLAIN, kv_blocks=told.kv_blocks, answered=cut, cache_salt=str(cut)
        )
        outputs = [o async for o in halves.decode.generate(request)]
        assert answer[:cut] + joined(outputs)[0] == answer
        assert outputs[0].cached_tokens == longer.token_ids.size
        rose = gained(before, halves.decode.transfer_stats())
        assert (rose["transfers"], rose["failed_transfers"]) == (1, 0)


@pytest.mark.parametrize("broken", ["no such engine", "no such blocks"])
async def test_blocks_that_do_not_arrive_are_computed_again(halves: Halves, broken: str) -> None:
    prompt = kept_prompt(500, 180, seed=41)
    right = joined(await halves.answer(prompt, f"right-{broken}"))[0]
    # With another salt, nothing is in the prefix cache.
    told = await halves.blocks(prompt, broken)
    blocks = dict(told.kv_blocks or {})
    if broken == "no such engine":
        blocks |= {"remote_engine_id": "gone", "remote_port": 1}
    else:
        blocks |= {"remote_block_ids": [[10**6 + i for i in range(len(blocks["remote_block_ids"][0]))]]}
    request = GenerateRequest(broken, prompt, GREEDY, decode=PLAIN, kv_blocks=blocks, cache_salt=broken)
    outputs = [o async for o in halves.decode.generate(request)]
    assert joined(outputs)[0] == right


async def test_a_whole_request_needs_no_leg_before_it(halves: Halves) -> None:
    prompt = kept_prompt(400, 100, seed=51)
    through = joined(await halves.answer(prompt, "through"))[0]
    assert await decode(halves.prefill, prompt, "whole-p", PLAIN) == through
    salted = GenerateRequest("whole-d", prompt, GREEDY, decode=PLAIN, cache_salt="other")
    assert joined([o async for o in halves.decode.generate(salted)])[0] == through


async def test_a_leg_of_the_other_half_is_refused(halves: Halves) -> None:
    prompt = dense_prompt(64)
    for engine, leg in ((halves.decode, {"prefill_only": True}), (halves.prefill, {"kv_blocks": {"a": 1}})):
        with pytest.raises(InvalidRequestError, match="leg"):
            _ = [o async for o in engine.generate(GenerateRequest("r", prompt, **leg))]


async def test_a_dead_prefill_engine_is_done_without(halves: Halves) -> None:
    """This must be the last test: the prefill engine dies after it has announced blocks, before they are read."""
    prompt = kept_prompt(600, 200, seed=61)
    told = await halves.blocks(prompt, "promised")
    halves.prefill.close()
    request = GenerateRequest("orphan", prompt, GREEDY, decode=PLAIN, kv_blocks=told.kv_blocks)
    orphan = joined([o async for o in halves.decode.generate(request)])[0]
    salted = GenerateRequest("alone", prompt, GREEDY, decode=PLAIN, cache_salt="alone")
    assert orphan == joined([o async for o in halves.decode.generate(salted)])[0]
    assert np.size(orphan) == 64
