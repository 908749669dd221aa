"""Sampling with drafts made ahead is exact on a real target: blocks of three tokens are distributed as its own.

The target's attention is silenced, so that a token's distribution depends on the token before it alone and can be
enumerated: then blocks from all over an answer count, where work ahead is used most.
"""

import asyncio
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from kv_transfer.arrays import Int32Array
from kv_transfer.draft_channel.server import DraftServer
from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from speculator_service.drafting.drafter import DraftService
from speculator_service.engine import Drafted
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.drafting import gained
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import build_model
from tests.reference.sampling_oracle import blocks_p, sampled_from
from tests.unit.speculator_service.drafting.draft_toys import ToyEngine

pytestmark = pytest.mark.nightly

HOST = "127.0.0.1"
VOCABULARY = 6
PROMPT = KeptPrompt(np.array([3, 1, 2, 4, 5], np.int32), np.array([0, 2, 3, 9, 14], np.int32), 20)
SESSIONS, TOKENS = 24, 400
SAMPLING = {"temperature": 0.7, "top_p": 0.8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("tiny")
    build_model(folder, "llama", vocab_size=VOCABULARY, layers=1, max_position=512, seed=9)
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.0.self_attn.o_proj.weight"].zero_()
    # transformers makes the padding token's row zero: all tokens after it would be equally likely.
    weights["model.embed_tokens.weight"][0].normal_(generator=torch.Generator().manual_seed(0))
    save_file(weights, Path(folder, "model.safetensors"), {"format": "pt"})
    return str(folder)


@pytest.fixture(scope="module")
def engine(start: Start) -> VllmTarget:
    return start(decode={"method": "remote", "max_draft_tokens": 2}, draft_channel={"deadline_s": 5.0})


@pytest.fixture(scope="module")
def logprobs(model: str) -> torch.Tensor:
    """float64 [vocabulary, vocabulary]: log probabilities after each token; earlier tokens have no effect."""
    oracle = GenerationOracle(model)
    table = torch.stack([oracle.logprobs(PROMPT, [token, 0])[1] for token in range(VOCABULARY)])
    elsewhere = [oracle.logprobs(KeptPrompt.dense([5, 5]), [1, token, 0])[2] for token in range(VOCABULARY)]
    assert torch.allclose(table, torch.stack(elsewhere), atol=1e-5)
    return table.double()


class Drafter(ToyEngine):
    """Similar to the target. Its random draws depend only on the session and the length of the answer."""

    def __init__(self, logprobs: torch.Tensor) -> None:
        other = np.random.default_rng(3).dirichlet(np.ones(VOCABULARY), VOCABULARY)
        super().__init__(0.7 * logprobs.exp().numpy() + 0.3 * other)

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        await self._work("draft", session)
        self._random = np.random.default_rng([zlib.crc32(session.encode()), answer.size])
        return self.next(answer, count, temperature, top_m)


class Liar(Drafter):
    """Reports a q that it did not sample from, when it drafts ahead."""

    ahead: ClassVar[set[str]] = set()

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        ahead = session in self.ahead
        self.ahead.discard(session)
        drafted = await super().draft(session, answer, count, temperature=temperature, top_m=top_m)
        if not top_m:  # the next token, which the work ahead begins with
            self.ahead.add(session)
        elif ahead:
            drafted.q_probs[:] = 1 / VOCABULARY
        return drafted


async def sample(target: VllmTarget, drafter: Drafter) -> tuple[list[list[int]], dict[str, int], dict[str, Any]]:
    """The sampled answers, the draft service's counters and the target's."""
    service = DraftService(drafter, clock=lambda: 0.0)
    server = DraftServer(service.handle, HOST)
    address = f"{HOST}:{await server.start()}"
    options = DecodeOptions(max_draft_tokens=1, adaptive=False, q_top=VOCABULARY)
    sampling = {**SAMPLING, "max_tokens": TOKENS, "ignore_eos": True, "detokenize": False}

    async def answer(seed: int) -> list[int]:
        name = f"{type(drafter).__name__}-{seed}"
        drafter.sessions.add(name)
        service.adopt(name, np.empty(0, np.int32))
        prompt = replace(PROMPT, session=SessionHandle(address, name))
        request = GenerateRequest(name, prompt, {**sampling, "seed": seed}, decode=options)
        return joined([o async for o in target.generate(request)])[0]

    before = await target.decode_stats()
    try:
        answers = await asyncio.gather(*map(answer, range(SESSIONS)))
        return answers, service.metrics(), gained(before, await target.decode_stats())
    finally:
        await server.stop()
        await service.close()


async def test_blocks_are_distributed_as_the_targets_own(engine: VllmTarget, logprobs: torch.Tensor) -> None:
    answers, counts, rose = await sample(engine, Drafter(logprobs))
    assert counts["ahead_hits"] >= 0.3 * counts["draft_requests"]
    assert counts["ahead_misses"] > 0.05 * counts["draft_requests"]
    assert 0.3 < rose["accepted"] / rose["drafts"] < 0.9
    assert {len(answer) for answer in answers} == {TOKENS}
    assert blocks_p(answers, sampled_from(logprobs, **SAMPLING)) > 0.01
    # Negative control: there are enough samples to reject a similar distribution.
    assert blocks_p(answers, sampled_from(logprobs, temperature=0.8, top_p=0.8)) < 1e-4


async def test_a_wrong_q_of_work_ahead_is_found_out(engine: VllmTarget, logprobs: torch.Tensor) -> None:
    answers, counts, _ = await sample(engine, Liar(logprobs))
    assert counts["ahead_hits"] >= 0.3 * counts["draft_requests"]
    assert blocks_p(answers, sampled_from(logprobs, **SAMPLING)) < 1e-4
