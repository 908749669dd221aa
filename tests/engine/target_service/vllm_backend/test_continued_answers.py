"""An answer that another replica began goes on as if it had not been disturbed, cut at any token (V1 runner on CPU)."""

import asyncio

import pytest

from kv_transfer.messages import GenerateRequest
from skim_common.errors import InvalidRequestError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    GREEDY,
    collect,
    dense_prompt,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.continued import CASES, differs, rest, whole
from tests.reference.generation_oracle import GenerationOracle, joined

MODEL = {"max_position": 2048}

# They share an engine, so also its event loop.
pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.fixture(scope="module")
def model(llama: str) -> str:
    return llama


@pytest.fixture(scope="module")
def engine(llama_engine: VllmTarget) -> VllmTarget:
    return llama_engine


@pytest.mark.parametrize("name", CASES)
async def test_an_answer_cut_anywhere_goes_on(engine: VllmTarget, model: str, name: str) -> None:
    """Beside other requests, with and without the prefix cache of the replica that began the answer."""
    prompts = {"kept": kept_prompt(700, 280, seed=1), "dense": dense_prompt(150, seed=2)}
    for kind, prompt in prompts.items():
        answer = await whole(engine, prompt, f"{name}-{kind}", **CASES[name])
        cuts = answer.cuts[::5]
        rests = await asyncio.gather(*(rest(engine, answer, cut, f"{name}-{kind}") for cut in cuts))
        assert {
            cut: wrong for cut, told in zip(cuts, rests, strict=True) if (wrong := differs(answer, cut, told))
        } == {}
    if name == "greedy":
        assert GenerationOracle(model).wrong_tokens(prompt, answer.tokens) == 0


@pytest.mark.parametrize("name", ["penalties", "logit_bias", "seed"])
async def test_as_part_of_the_prompt_alone_the_answer_goes_wrong(engine: VllmTarget, name: str) -> None:
    """Negative control: the same tokens, but not told that they are output tokens."""
    answer = await whole(engine, kept_prompt(700, 280, seed=1), f"{name}-control", **CASES[name])
    cuts = answer.cuts[::5]
    rests = await asyncio.gather(*(rest(engine, answer, cut, f"{name}-n", told=False) for cut in cuts))
    assert any("tokens" in differs(answer, cut, told) for cut, told in zip(cuts, rests, strict=True))


async def test_text_joins_inside_a_character_and_inside_a_stop_string(engine: VllmTarget) -> None:
    """The bytes of some characters are spread over tokens, and the text that a stop string may begin is held back."""
    prompt = kept_prompt(700, 280, seed=3)
    first = await whole(engine, prompt, "stop-first")
    text = joined(first.outputs)[2]
    stop = text[len(text) // 2 : len(text) // 2 + 12]
    # The engine holds back as many characters as the longest stop string has, also if a slow reader gets several tokens
    # in one output.
    answer = await whole(engine, prompt, "stop", stop=[stop, 4 * "never said"])
    assert answer.reasons == ("stop", stop)
    assert any(not o.completions[0].text for o in answer.outputs), "nothing was held back"
    cuts = answer.cuts
    rests = await asyncio.gather(*(rest(engine, answer, cut, "stop") for cut in cuts))
    assert [differs(answer, cut, told) for cut, told in zip(cuts, rests, strict=True)] == [[]] * len(cuts)


@pytest.mark.parametrize("constraint", [{"regex": "([a-d][0-9]){8,20}"}, {"choice": ["abcabcabd", "abcabdabc"]}])
async def test_the_grammar_has_read_the_answer(engine: VllmTarget, constraint: dict[str, object]) -> None:
    prompt = kept_prompt(700, 280, seed=4)
    answer = await whole(engine, prompt, "grammar", structured_outputs=constraint, ignore_eos=False)
    cuts = answer.cuts
    rests = await asyncio.gather(*(rest(engine, answer, cut, "grammar") for cut in cuts))
    assert [differs(answer, cut, told) for cut, told in zip(cuts, rests, strict=True)] == [[]] * len(cuts)
    control = await asyncio.gather(*(rest(engine, answer, cut, "grammar-n", told=False) for cut in cuts))
    assert any(differs(answer, cut, told) for cut, told in zip(cuts, control, strict=True))


async def test_an_answer_that_its_grammar_refuses_ends_with_an_error(engine: VllmTarget) -> None:
    prompt = kept_prompt(700, 280, seed=4)
    plain = await whole(engine, prompt, "refused")
    sampling = {**GREEDY, "structured_outputs": {"regex": "[a-d]{40}"}}
    request = GenerateRequest("refused-1", prompt.extended(plain.tokens[:6]), sampling, answered=6)
    outputs = [o async for o in engine.generate(request)]
    assert outputs[-1].completions[0].finish_reason == "error"
    assert len(joined(await collect(engine, prompt, "after"))[0]) == 64


async def test_what_cannot_be_continued_is_refused(engine: VllmTarget) -> None:
    prompt = dense_prompt(100, seed=5).extended([1, 2, 3])
    for sampling in ({"max_tokens": 3}, {"n": 2}, {"prompt_logprobs": 1}, {"output_kind": 2}):
        request = GenerateRequest("no", prompt, {**GREEDY, **sampling}, answered=3)
        with pytest.raises(InvalidRequestError, match="answer"):
            _ = [o async for o in engine.generate(request)]
