"""The oracle of answers, and the drafter that is made of it."""

import numpy as np
import pytest
import torch

from kv_transfer.messages import KeptPrompt
from skim_common.errors import SessionLostError
from tests.engine.target_service.vllm_backend.cases import build_target, kept_prompt
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.model_drafter import ModelDrafter


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_target(tmp_path_factory.mktemp("llama"), "llama", max_position=2048)


def test_the_oracle_without_its_mask_falls_into_the_packing_trap(model):
    """The oracle needs a mask: without it, transformers treats gaps as packed sequences, and the answer changes."""
    oracle, prompt = GenerationOracle(model), kept_prompt(900, 300, seed=8)
    inputs = {"input_ids": prompt.token_ids, "position_ids": prompt.positions}
    tensors = {name: torch.tensor(value, dtype=torch.long)[None] for name, value in inputs.items()}
    with torch.inference_mode():
        packed = oracle._model(**tensors, use_cache=False).logits[0, -1].log_softmax(-1)
    assert (packed - oracle.logprobs(prompt, [0])[0]).abs().max() > 1


async def test_the_drafter_continues_the_answer_at_its_positions(model):
    oracle, drafter, prompt = GenerationOracle(model), ModelDrafter(model), kept_prompt(300, 60)
    await drafter.open_session("s", prompt)
    answers = [np.array(answer, np.int32) for answer in ([], [30, 40])]
    for answer in answers:
        drafted = await drafter.draft("s", answer, 4)
        tokens = [*answer.tolist(), *drafted.tokens.tolist()]
        rows = oracle.logprobs(prompt, tokens)[answer.size :]
        assert drafted.tokens.tolist() == rows.argmax(-1).tolist()
    # Negative control: at other positions the drafts are wrong.
    moved = KeptPrompt(prompt.token_ids, np.arange(60, dtype=np.int32), 60)
    assert drafted.tokens.tolist() != oracle.logprobs(moved, tokens)[2:].argmax(-1).tolist()


async def test_the_drafter_samples_from_the_q_that_it_reports(model):
    oracle, drafter, prompt = GenerationOracle(model), ModelDrafter(model), kept_prompt(300, 60)
    await drafter.open_session("s", prompt)
    probs, ids = (oracle.logprobs(prompt, [0])[0] / 0.7).softmax(-1).topk(4)
    expected, counts = (probs / probs.sum()).numpy(), np.zeros(4)
    for _ in range(200):
        drafted = await drafter.draft("s", np.empty(0, np.int32), 1, temperature=0.7, top_m=4)
        assert drafted.q_ids.tolist() == ids.tolist()
        assert drafted.q_probs == pytest.approx(expected, abs=1e-4)
        counts += drafted.q_ids == drafted.tokens
    assert np.abs(counts / 200 - expected).max() < 0.15
    await drafter.close_session("s")
    with pytest.raises(SessionLostError):
        await drafter.draft("s", np.empty(0, np.int32), 1)
