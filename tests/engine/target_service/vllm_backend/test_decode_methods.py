"""vLLM's own speculation at restored positions: the tokens stay those of plain decoding; one engine per method."""

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from vllm.config.speculative import MTPModelTypes, SpeculativeMethod

from kv_transfer.messages import KeptPrompt
from kv_transfer.options import DecodeOptions
from skim_common.errors import SkimError
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import dense_prompt, engine_options, kept_prompt
from tests.engine.target_service.vllm_backend.conftest import Start
from tests.engine.target_service.vllm_backend.drafting import PLAIN, decode, gained
from tests.reference.draft_heads import build_dflash, build_eagle, build_medusa
from tests.reference.generation_oracle import GenerationOracle

pytestmark = pytest.mark.nightly

MAX_DRAFTS = 3
NEEDS_ARCTIC = pytest.mark.skipif(not find_spec("arctic_inference"), reason="suffix decoding needs arctic-inference")
METHODS = [
    "ngram",
    pytest.param("suffix", marks=NEEDS_ARCTIC),
    "draft_model",
    "eagle",
    "eagle3",
    "medusa",
    "dflash",
]


MODEL = {"heads": 2, "kv_heads": 1, "max_position": 2048}


def method_options(method: str, model: str, folder: Path) -> dict[str, Any]:
    """The options of a method besides its name. Draft weights are random."""
    if method == "ngram":
        return {"speculative_config": {"prompt_lookup_min": 1, "prompt_lookup_max": 3}}
    if method == "draft_model":
        return {"draft_model": model}
    if method == "dflash":
        return {"draft_model": build_dflash(folder, model)}
    if method in ("eagle", "eagle3"):
        return {"draft_model": build_eagle(folder, model, method)}
    return {"draft_model": build_medusa(folder, model, MAX_DRAFTS)} if method == "medusa" else {}


@pytest.fixture(scope="module", params=METHODS)
def engine(
    request: pytest.FixtureRequest, start: Start, model: str, tmp_path_factory: pytest.TempPathFactory
) -> VllmTarget:
    more = method_options(request.param, model, tmp_path_factory.mktemp(request.param))
    return start(decode={"method": request.param, "max_draft_tokens": MAX_DRAFTS}, **more)


def repeating(prompt: KeptPrompt) -> KeptPrompt:
    """The same positions, with the first quarter's tokens repeated, so that n-grams and suffixes find matches."""
    ids = prompt.token_ids
    quarter = ids.size // 4
    return KeptPrompt(np.tile(ids[:quarter], 4), prompt.positions[: quarter * 4], prompt.context_length)


def many_prompts() -> list[KeptPrompt]:
    """50 kept and dense prompts; every other kept prompt has repeated tokens."""
    kept = [kept_prompt(200 + 11 * i, 40 + i, seed=i) for i in range(40)]
    dense = [dense_prompt(30 + i, seed=100 + i) for i in range(10)]
    return [repeating(p) if i % 2 else p for i, p in enumerate(kept)] + dense


async def test_tokens_are_those_of_plain_decoding(engine: VllmTarget, model: str) -> None:
    prompts, options = many_prompts(), DecodeOptions(max_draft_tokens=MAX_DRAFTS)
    plain = await asyncio.gather(*(decode(engine, p, f"plain-{i}", PLAIN) for i, p in enumerate(prompts)))
    before = await engine.decode_stats()
    assert before["drafts"] == 0
    drafted = await asyncio.gather(*(decode(engine, p, f"drafted-{i}", options) for i, p in enumerate(prompts)))
    rose = gained(before, await engine.decode_stats())
    assert [i for i, (d, p) in enumerate(zip(drafted, plain, strict=True)) if d != p] == []
    assert {len(tokens) for tokens in drafted} == {64}
    # The method must have drafted in some rounds; otherwise this test would show nothing.
    assert rose["drafts"] > 10 * len(prompts)
    oracle = GenerationOracle(model)
    assert [oracle.wrong_tokens(prompts[i], plain[i]) for i in range(0, len(prompts), 7)] == [0] * 8
    print(f"\n{engine.decode.method}: {rose}")


async def test_a_request_may_ask_for_fewer_drafts(engine: VllmTarget) -> None:
    before = await engine.decode_stats()
    await decode(engine, repeating(kept_prompt(600, 120, seed=2)), "few", DecodeOptions(max_draft_tokens=1))
    assert gained(before, await engine.decode_stats())["drafts_per_position"][1:] == [0] * (MAX_DRAFTS - 1)


async def test_an_answer_up_to_the_last_position(engine: VllmTarget, model: str) -> None:
    """Drafts may exceed the model's last position; their positions must stay inside the rotary embedding table."""
    prompt = kept_prompt(2048 - 64, 60, seed=4)
    tokens = await decode(engine, prompt, "last", DecodeOptions(max_draft_tokens=MAX_DRAFTS))
    assert len(tokens) == 64
    assert GenerationOracle(model).wrong_tokens(prompt, tokens) == 0


def test_a_method_without_its_weights_is_refused(model: str) -> None:
    with pytest.raises(SkimError, match="decode method eagle needs draft_model"):
        VllmTarget(model, decode={"method": "eagle"})


@pytest.mark.parametrize("method", ["ngram_gpu", "dspark"])
def test_methods_that_need_a_gpu(model: str, device: str, tmp_path: Path, method: str) -> None:
    if device == "cuda":
        pytest.skip("there is one")
    draft = build_dflash(tmp_path, model, method) if method == "dspark" else None
    with pytest.raises(SkimError, match=f"decode method {method} needs a GPU, and there is none"):
        VllmTarget(model, decode={"method": method}, draft_model=draft, **engine_options(device))


def test_every_method_of_vllm_that_drafts_text_is_offered_or_refused() -> None:
    ours = set(get_args(DecodeOptions.model_fields["method"].annotation)) - {"remote", "none"}
    without = {"custom_class", "extract_hidden_states", "mlp_speculator"}  # the remote drafts, no drafts, never run
    old_names = set(get_args(MTPModelTypes)) - {"mtp"}
    assert ours == set(get_args(SpeculativeMethod)) - without - old_names


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"method": "guess"}, "method"),
        ({"max_draft_tokens": 0}, "max_draft_tokens"),
    ],
)
def test_wrong_decode_options_are_named(model: str, fields: dict[str, Any], words: str) -> None:
    with pytest.raises(SkimError, match=words):
        VllmTarget(model, decode=fields)
