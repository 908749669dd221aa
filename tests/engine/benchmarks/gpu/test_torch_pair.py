"""The torch pair computes the same as transformers, and all measurements run at toy size."""

import json

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu import decode, scoring, torch_model, ttft
from benchmarks.gpu.presets import MODELS, Preset
from benchmarks.gpu.torch_model import TorchModel
from benchmarks.gpu.torch_pair import TorchPair
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from skim_common.errors import SkimError
from speculator_service.scoring.importance import Aggregate, layer_scores

SMALL = Preset("toy-small", "toy-small", (64,))
CONFIG = MODELS["toy-small"]
# With peaked attention and untied embeddings, the most likely token depends on every position.
PEAKED = {**CONFIG, "initializer_range": (2 / CONFIG["hidden_size"]) ** 0.5, "tie_word_embeddings": False}


@pytest.fixture(scope="module")
def pair():
    return TorchPair(SMALL, "cpu", 200, 200)


@pytest.fixture
def ids():
    return ttft.prompt_ids(96, 0)


def _stock(seed):
    torch.manual_seed(seed)
    config = AutoConfig.for_model(**PEAKED)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()


def _likeliest(model, tokens, positions):
    mask = torch.ones(1, len(tokens), dtype=torch.long)
    with torch.inference_mode():
        out = model(torch.tensor([tokens]), position_ids=torch.tensor([positions]), attention_mask=mask)
    return out.logits[0].argmax(-1)


def test_chunks_and_restored_positions_are_transformers(monkeypatch, ids):
    monkeypatch.setattr(torch_model, "CHUNK", 40)
    model, stock = TorchModel(PEAKED, "cpu", 200, seed=3), _stock(3)
    positions = np.sort(np.random.default_rng(0).choice(500, ids.size, replace=False)).astype(np.int64)
    tokens = torch.from_numpy(ids.astype(np.int64))
    # The last chunk has 16 tokens; all of its predictions are compared.
    found = model.read(tokens, torch.from_numpy(positions), last=16)
    assert found.tolist() == _likeliest(stock, ids.tolist(), positions.tolist())[-16:].tolist()
    # The control: wrong positions change the predictions.
    assert found.tolist() != _likeliest(stock, ids.tolist(), list(range(ids.size)))[-16:].tolist()


def test_cropping_takes_back(ids):
    model = TorchModel(CONFIG, "cpu", 200)
    tokens, positions = torch.from_numpy(ids.astype(np.int64)), torch.arange(ids.size)
    first = model.read(tokens, positions)
    model.read(torch.tensor([5, 6, 7]), torch.arange(ids.size, ids.size + 3))
    model.crop(ids.size - 1)
    assert model.length == ids.size - 1
    assert model.read(tokens[-1:], positions[-1:]).tolist() == first.tolist()


async def test_skim_scores_and_selects(pair, ids):
    timed = await pair.skim(ids, SelectionOptions(keep_rate=0.3, look_ahead=2))
    assert np.array_equal(timed.kept.token_ids, ids[timed.kept.positions])
    assert 0 < timed.kept.token_ids.size < ids.size
    assert set(timed.parts) == {"speculate", "scoring", "select", "prefill"}
    assert timed.ms >= sum(timed.parts.values()) * 0.99


def test_importance_is_that_of_scoring(pair, ids):
    steps = pair._look_ahead(ids, 2)
    assert len(steps) == 3
    aggregate = Aggregate("max", num_layers=2, steps=3, prompt=ids.size)
    for layer in range(2):
        queries = torch.stack([step[layer] for step in steps])
        keys = pair._speculator.cache.layers[layer].keys[0, :, : ids.size]
        aggregate.add(layer_scores(queries, keys, CONFIG["head_dim"] ** -0.5, 13))
    expected = aggregate.importance(torch.ones(3, dtype=torch.bool))
    assert torch.equal(pair._importance(steps, ids.size, SelectionOptions(look_ahead=2)), expected)


@pytest.mark.parametrize(("acceptance", "per_verify"), [(0.0, 1.0), (1.0, 4.0)])
async def test_acceptance_is_forced(pair, ids, acceptance, per_verify):
    kept = KeptPrompt.dense(ids)
    plain = await pair.plain(kept, 21)
    decoded = await pair.drafted(ids, kept, plain.ids, 3, acceptance, instant=False)
    assert 1 + decoded.accepted / decoded.verifications == per_verify
    assert decoded.tokens == len(decoded.ids) - 1 >= 20
    if not acceptance:
        # No draft was accepted, so the answer is the target's own: rejected drafts leave no trace.
        assert decoded.ids == plain.ids


async def test_ttft_tells_of_every_case(pair, tmp_path):
    result = await ttft.run(pair, ttft.GpuTtftSettings("toy", "cpu", (64, 96), (0.2, 0.5), look_ahead=1, rounds=2))
    assert [(row["prompt_tokens"], row["keep_rate"]) for row in result["rows"]] == [
        (64, 0.2), (64, 0.5), (96, 0.2), (96, 0.5),
    ]  # fmt: skip
    assert all(row[name] > 0 for row in result["rows"] for name in ("dense_ms", "skim_ms", "limit_ms", "scoring_ms"))
    _shown(ttft, result, tmp_path)


async def test_decode_tells_measured_from_computed(pair, tmp_path):
    settings = decode.GpuDecodeSettings("toy", "cpu", (64,), 0.3, 2, (0.0, 1.0), 7, 1)
    result = await decode.run(pair, settings)
    (entry,) = result["lengths"]
    assert list(entry["modes"]) == ["plain", "instant", "remote 0.0", "remote 1.0"]
    assert entry["modes"]["remote 1.0"]["tokens_per_verify"] == 3
    _, rows = decode.table(result)
    assert [row[1] for row in rows if not row[2]] == [f"computed, acceptance {a}" for a in decode.COMPUTED]
    _shown(decode, result, tmp_path)


def test_the_speed_up_is_computed_by_hand():
    costs = {"plain_ms": 10.0, "verify_ms": 12.0, "draft_ms": 8.0}
    rows = {row["acceptance"]: row for row in decode.computed(costs, 2)}
    assert rows[0.5]["tokens_per_step"] == 1 + 0.5 + 0.25
    assert rows[0.5]["speed_up"] == pytest.approx(1.75 * 10 / 20)
    assert rows[1.0]["ahead"] == pytest.approx(3 * 10 / 12)


def test_scoring_counts_keys_once(tmp_path):
    result = scoring.run(scoring.GpuScoringSettings("cpu", "toy-small", (50, 100), look_ahead=1, rounds=1))
    first, second = result["rows"]
    assert first["key_bytes"] == 2 * 2 * 50 * 32 * 4
    assert second["share_of_copy"] == pytest.approx(
        second["key_bytes"] / (second["ms"] / 1e3) / second["copy_bytes_per_second"]
    )
    assert first["peak_bytes"] is None
    _shown(scoring, result, tmp_path)


def test_a_tiling_is_read():
    assert scoring._tiling("64x32x8")[:2] == (64, 32)
    with pytest.raises(SkimError, match="TILExROWSxWARPS"):
        scoring._tiling("64")


def _shown(module, result, folder):
    """The result can be written as JSON, described, shown as a table and drawn."""
    json.dumps(result)
    columns, rows = module.table(result)
    assert rows
    assert {len(row) for row in rows} == {len(columns)}
    assert module.describe(result).endswith(".")
    module.plot(result, folder / "plot.png")
    assert (folder / "plot.png").stat().st_size > 1000
