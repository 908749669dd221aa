"""The transformers target, which decodes with a cache and explicit positions, against the oracle without a cache."""

import asyncio
from collections.abc import Iterator

import pytest
import torch

from kv_transfer.messages import GenerateRequest, KeptPrompt
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from target_service.transformers_backend.engine import TransformersTarget
from tests.engine.target_service.vllm_backend.cases import (
    TOLERANCE,
    assert_right,
    build_target,
    collect,
    dense_prompt,
    kept_prompt,
)
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import FAMILIES, Family
from tests.reference.segments import shuffled


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return build_target(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture(scope="module")
def oracle(model: str) -> GenerationOracle:
    return GenerationOracle(model)


@pytest.fixture(scope="module")
def engine(model: str, device: str) -> Iterator[TransformersTarget]:
    target = TransformersTarget(model, device=device, dtype="float32")
    yield target
    target.close()


@pytest.mark.parametrize("family", FAMILIES)
async def test_kept_and_dense_prompts_are_the_oracles(
    family: Family, tmp_path: pytest.TempPathFactory, device: str
) -> None:
    folder = build_target(tmp_path, family)
    target, oracle = TransformersTarget(folder, device=device, dtype="float32"), GenerationOracle(folder)
    prompts = [kept_prompt(900, 300, seed=1), dense_prompt(200, seed=2), kept_prompt(700, 1, seed=3)]
    prompts += [shuffled(kept_prompt(300, 100, seed=4))]
    await asyncio.gather(*(assert_right(target, oracle, p) for p in prompts))
    target.close()


async def test_several_answers_follow_the_seed(engine: TransformersTarget, oracle: GenerationOracle) -> None:
    prompt = kept_prompt(500, 120, seed=4)
    sampling = {"n": 3, "temperature": 1.0, "seed": 4, "max_tokens": 12}
    outputs, again = [await collect(engine, prompt, **sampling) for _ in range(2)]
    answers = [joined(outputs, index) for index in range(3)]
    assert [a[0] for a in answers] == [joined(again, index)[0] for index in range(3)]
    assert len({tuple(tokens) for tokens, _, _ in answers}) == 3
    for tokens, logprobs, _ in answers:
        assert [row[0].token_id for row in logprobs] == tokens
        assert oracle.largest_difference(prompt, tokens, logprobs) <= TOLERANCE


async def test_top_p_never_leaves_its_set(engine: TransformersTarget, oracle: GenerationOracle) -> None:
    """Each sampled token is in the smallest set that reaches top_p, and it is not always the most probable token."""
    prompt = kept_prompt(500, 120, seed=5)
    outputs = await collect(engine, prompt, temperature=1.0, top_p=0.6, seed=1, max_tokens=40)
    tokens, logprobs, _ = joined(outputs)
    before = []
    for step, row in enumerate(oracle.logprobs(prompt, tokens)):
        likelier = row[row > row[tokens[step]]]
        before.append(float(likelier.exp().sum()))
    assert max(before) < 0.6
    assert max(row[0].rank or 0 for row in logprobs) > 1


async def test_stops_and_kinds(engine: TransformersTarget) -> None:
    prompt = kept_prompt(500, 120, seed=6)
    tokens, _, text = joined(await collect(engine, prompt))
    [by_token] = await collect(engine, prompt, stop_token_ids=[tokens[9]], output_kind=2)
    stopped = by_token.completions[0]
    assert stopped.token_ids.tolist() == tokens[: tokens.index(tokens[9]) + 1]
    assert (stopped.finish_reason, stopped.stop_reason) == ("stop", tokens[9])
    stop = text[20:24]
    assert joined(await collect(engine, prompt, stop=[stop]))[2] == text[: text.index(stop)]


async def test_the_end_token_ends_unless_ignored(tmp_path: pytest.TempPathFactory, device: str) -> None:
    prompt = kept_prompt(500, 120, seed=6)
    first = TransformersTarget(build_target(tmp_path / "a", "llama"), device=device)
    tokens, _, _ = joined(await collect(first, prompt))
    ending = TransformersTarget(build_target(tmp_path / "b", "llama", eos_token_id=tokens[7]), device=device)
    [ended] = await collect(ending, prompt, ignore_eos=False, output_kind=2)
    assert ended.completions[0].token_ids.tolist() == tokens[: tokens.index(tokens[7]) + 1]
    assert (ended.completions[0].finish_reason, ended.completions[0].stop_reason) == ("stop", None)
    assert joined(await collect(ending, prompt))[0] == tokens


async def test_prompt_logprobs_of_a_dense_prompt(engine: TransformersTarget, oracle: GenerationOracle) -> None:
    ids = dense_prompt(80, seed=7).token_ids.tolist()
    [output] = await collect(engine, KeptPrompt.dense(ids), prompt_logprobs=2, max_tokens=1)
    told = output.prompt_logprobs
    assert told is not None
    ours = oracle.logprobs(KeptPrompt.dense(ids[:1]), ids[1:])
    assert [row[0].token_id for row in told[1:] if row] == ids[1:]
    for row, expected in zip(told[1:], ours, strict=True):
        assert all(abs(c.logprob - expected[c.token_id].item()) <= TOLERANCE for c in row or [])


async def test_unknown_sampling_is_refused_by_name(engine: TransformersTarget) -> None:
    for sampling in ({"top_k": 5}, {"presence_penalty": 1.0}, {"structured_outputs": {"json": "{}"}}):
        with pytest.raises(InvalidRequestError, match=next(iter(sampling))):
            await collect(engine, kept_prompt(90, 20), **sampling)
    # Default values that vLLM's front sets explicitly are accepted.
    assert await collect(engine, kept_prompt(90, 20), max_tokens=1, bad_words=[], skip_clone=True)


async def test_a_closed_stream_leaves_the_engine_free(model: str, device: str) -> None:
    target = TransformersTarget(model, device=device)
    stream = target.generate(GenerateRequest("left", kept_prompt(900, 300), {"max_tokens": 7000, "ignore_eos": True}))
    await anext(stream)
    await stream.aclose()
    assert len(joined(await collect(target, kept_prompt(90, 20), max_tokens=3))[0]) == 3
    target.close()
    target.close()
    with pytest.raises(EngineUnavailableError):
        await collect(target, kept_prompt(90, 20))


def test_the_oracle_without_its_mask_falls_into_the_packing_trap(oracle: GenerationOracle) -> None:
    """The oracle needs a mask: without it, transformers treats gaps as packed sequences, and the answer changes."""
    prompt = kept_prompt(900, 300, seed=8)
    inputs = {"input_ids": prompt.token_ids, "position_ids": prompt.positions}
    tensors = {name: torch.tensor(value, dtype=torch.long)[None] for name, value in inputs.items()}
    with torch.inference_mode():
        packed = oracle._model(**tensors, use_cache=False).logits[0, -1].log_softmax(-1)
    assert (packed - oracle.logprobs(prompt, [0])[0]).abs().max() > 1
