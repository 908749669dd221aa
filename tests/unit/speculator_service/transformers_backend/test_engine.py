import asyncio

import numpy as np
import pytest
import torch

from kv_transfer.options import SelectionOptions
from skim_common.errors import EngineUnavailableError, InvalidRequestError, ModelError
from speculator_service.factory import create_engine
from speculator_service.scoring.selection import select
from speculator_service.transformers_backend import engine as transformers_engine
from tests.reference import scoring_oracle
from tests.reference.models import FAMILIES, build_model, random_prompt

TOLERANCE = {"atol": 1e-6, "rtol": 1e-4}


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return lambda family, **options: build_model(tmp_path_factory.mktemp(family), family, **options)


async def engine_scores(engine, prompt, options):
    return await engine.score("r", np.array(prompt, np.int32), options)


async def check_against_oracle(engine, oracle, prompt, options):
    got, want = await engine_scores(engine, prompt, options), scoring_oracle.score(oracle, prompt, options)
    assert got.look_ahead_tokens == want.look_ahead_tokens
    torch.testing.assert_close(got.importance, want.importance, **TOLERANCE)
    assert torch.equal(select(got.importance, options)[0], select(want.importance, options)[0])
    return got


@pytest.mark.parametrize("family", FAMILIES)
async def test_equals_the_oracle(family, build, monkeypatch):
    head_dim = 128 if family in ("qwen2", "mistral") else 64
    path = build(family, head_dim=head_dim)
    engine, oracle = create_engine("transformers", path), scoring_oracle.load(path)
    for length, look_ahead in ((1, 3), (300, 0), (700, 8)):
        prompt = random_prompt(length, seed=length)
        await check_against_oracle(engine, oracle, prompt, SelectionOptions(look_ahead=look_ahead, keep_rate=0.3))
    monkeypatch.setattr(transformers_engine, "PREFILL_TOKENS", 128)
    await check_against_oracle(engine, oracle, prompt, SelectionOptions(keep_rate=0.3))
    engine.close()


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 1), (8, 2)])
async def test_every_option_of_scoring(heads, kv_heads, build):
    path = build("llama", heads=heads, kv_heads=kv_heads, head_dim=16, layers=10)
    engine, oracle = create_engine("transformers", path), scoring_oracle.load(path)
    prompt = random_prompt(150)
    seen = []
    for layers in ("all", "last_half", "last4", "last1"):
        for aggregation in ("max", "head_max_layer_mean"):
            for kernel in (1, 201):
                options = SelectionOptions(layers=layers, aggregation=aggregation, pool_kernel=kernel, look_ahead=2)
                seen.append((await check_against_oracle(engine, oracle, prompt, options)).importance)
    distinct = {tuple(s.tolist()) for s in seen}
    # With one layer both aggregations agree. All other pairs of options must give different scores.
    assert len(distinct) == 14
    engine.close()


@pytest.mark.parametrize("mode", ["question", "both"])
async def test_the_queries_of_the_question(mode, build, monkeypatch):
    path = build("qwen2", head_dim=128)
    engine, oracle, prompt = create_engine("transformers", path), scoring_oracle.load(path), random_prompt(300)
    monkeypatch.setattr(transformers_engine, "PREFILL_TOKENS", 128)
    options = SelectionOptions(score_queries=mode, look_ahead=3)
    # Split by the end of a forward, at the end, and longer than the limit.
    for question in ((120, 140), (290, 300), (100, 260)):
        rows = range(max(question[0], question[1] - 64), min(question[1], 300 if mode == "question" else 299))
        got = await engine.score("r", np.array(prompt, np.int32), options, question=question)
        want = scoring_oracle.score(oracle, prompt, options, rows=rows)
        assert got.look_ahead_tokens == want.look_ahead_tokens
        torch.testing.assert_close(got.importance, want.importance, **TOLERANCE)
        # Negative control: other rows give other scores.
        other = scoring_oracle.score(oracle, prompt, options, rows=[row - 1 for row in rows])
        assert not torch.allclose(got.importance, other.importance, **TOLERANCE)
    unknown = await engine.score("r", np.array(prompt, np.int32), options)
    ends = await engine.score("r", np.array(prompt, np.int32), options, question=(300 - options.protect_last, 300))
    assert torch.equal(unknown.importance, ends.importance)
    engine.close()


async def test_decoding_stops_at_an_eos(build):
    prompt, options = random_prompt(200), SelectionOptions(look_ahead=6)
    plain = create_engine("transformers", build("llama", eos_token_id=5))
    free = await engine_scores(plain, prompt, options)
    eos = free.look_ahead_tokens[2]
    path = build("llama", eos_token_id=eos)
    engine = create_engine("transformers", path)
    stopped = await check_against_oracle(engine, scoring_oracle.load(path), prompt, options)
    first = free.look_ahead_tokens.index(eos)
    assert stopped.look_ahead_tokens == free.look_ahead_tokens[: first + 1]
    # Negative control: without the mask the scores differ.
    assert not torch.allclose(stopped.importance, free.importance, **TOLERANCE)
    shorter = await engine_scores(plain, prompt, SelectionOptions(look_ahead=first))
    torch.testing.assert_close(stopped.importance, shorter.importance, **TOLERANCE)


async def test_requests_at_once_do_not_mix(build):
    engine = create_engine("transformers", build("llama", head_dim=16))
    prompts = [random_prompt(50 + 30 * i, seed=i) for i in range(4)]
    alone = [await engine_scores(engine, p, SelectionOptions()) for p in prompts]
    together = await asyncio.gather(*(engine_scores(engine, p, SelectionOptions()) for p in prompts))
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.importance, other.importance)
        assert set(other.timings) == {"queue", "speculate"}


async def test_a_cancelled_request_stops_before_its_next_forward(build, monkeypatch):
    engine = create_engine("transformers", build("llama", head_dim=16))
    monkeypatch.setattr(transformers_engine, "PREFILL_TOKENS", 1)
    forwards, entered = 0, asyncio.Event()
    loop, forward = asyncio.get_running_loop(), engine._model.forward

    def counted(*args, **kwargs):
        nonlocal forwards
        forwards += 1
        loop.call_soon_threadsafe(entered.set)
        return forward(*args, **kwargs)

    monkeypatch.setattr(engine._model, "forward", counted)
    task = asyncio.create_task(engine_scores(engine, random_prompt(5000), SelectionOptions()))
    queued = asyncio.create_task(engine_scores(engine, random_prompt(5000), SelectionOptions()))
    await entered.wait()
    queued.cancel()
    task.cancel()
    for cancelled in (task, queued):
        with pytest.raises(asyncio.CancelledError):
            await cancelled
    engine.close()
    assert 1 <= forwards < 5000


async def test_closing_ends_running_requests(build, monkeypatch):
    engine = create_engine("transformers", build("llama", head_dim=16))
    monkeypatch.setattr(transformers_engine, "PREFILL_TOKENS", 1)
    tasks = [asyncio.create_task(engine_scores(engine, random_prompt(5000), SelectionOptions())) for _ in range(3)]
    await asyncio.sleep(0)
    engine.close()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(r) for r in results] == [EngineUnavailableError] * 3


async def test_limits_and_close(build):
    engine = create_engine("transformers", build("llama", head_dim=16), options={"max_model_len": 40})
    with pytest.raises(InvalidRequestError, match="reads at most 40"):
        await engine_scores(engine, random_prompt(33), SelectionOptions(look_ahead=8))
    engine.close()
    engine.close()
    with pytest.raises(EngineUnavailableError):
        await engine_scores(engine, [20], SelectionOptions())


def test_models_that_cannot_be_scored(build, tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        create_engine("transformers", str(tmp_path / "missing"))
    with pytest.raises(ModelError, match="sliding"):
        create_engine("transformers", build("mistral", head_dim=16, sliding_window=64))
    path = build("llama", head_dim=16)
    with pytest.raises(ModelError, match="cannot be loaded"):
        create_engine("transformers", path, options={"dtype": "float31"})


def test_attention_that_does_not_show_its_queries(build, monkeypatch):
    monkeypatch.setattr(transformers_engine, "_ATTENTION", "sdpa")
    with pytest.raises(ModelError, match="does not show the queries of LlamaForCausalLM"):
        create_engine("transformers", build("llama", head_dim=16))
