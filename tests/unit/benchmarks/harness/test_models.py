"""The bench pair: its operations are counted by hand, and its models follow from their settings."""

import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from benchmarks.harness import models
from benchmarks.harness.models import (
    SPECULATOR,
    TARGET,
    BenchPair,
    Shape,
    every_head,
    flop_ratio,
    make_model,
    prefill_flops,
    random_prompt,
)
from skim_common.models.info import check_pair, inspect_model
from speculator_service.model import model_fingerprint

SMALL = Shape(layers=2, heads=2, kv_heads=1, intermediate=96)


def test_weights_and_attention_are_counted() -> None:
    per_layer = 128 * 128 + 2 * 128 * 64 + 128 * 128 + 3 * 128 * 96  # q, k and v, o, feed-forward
    attention = 2 * (2 * 10 * 10 / 2 * 128)  # q·k and weights·v over half a square
    assert prefill_flops(SMALL, 10) == 2 * (2 * per_layer * 10 + attention)


def test_the_weights_counted_are_those_of_the_model() -> None:
    config = LlamaConfig(
        vocab_size=8, hidden_size=128, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=64,
    )  # fmt: skip
    matrices = [w.numel() for w in LlamaForCausalLM(config).model.layers.parameters() if w.dim() == 2]
    attention_of_one = 2 * 2 * 128
    assert prefill_flops(SMALL, 1) == 2 * sum(matrices) + attention_of_one


def test_attention_rules_long_prompts() -> None:
    assert prefill_flops(TARGET, 200_000) / prefill_flops(TARGET, 100_000) == pytest.approx(4, rel=0.1)
    pair = BenchPair("", "", TARGET, SPECULATOR)  # type: ignore[arg-type]
    assert flop_ratio(pair, 8192, 0.1) > flop_ratio(pair, 1024, 0.1) > 1
    assert flop_ratio(pair, 8192, 1.0) < 1
    assert flop_ratio(pair, 8192, 0.1, window=8192) == flop_ratio(pair, 8192, 0.1)
    assert flop_ratio(pair, 8192, 0.1, window=1024) > flop_ratio(pair, 8192, 0.1), "windows have less attention"


def test_models_are_made_once_and_follow_from_their_seed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(models.tempfile, "tempdir", str(tmp_path))
    first, again, other = make_model(SMALL, 1), make_model(SMALL, 1), make_model(SMALL, 2)
    assert first == again != other
    weights = [(folder / "model.safetensors").read_bytes() for folder in (first, other)]
    assert weights[0] != weights[1]
    assert len(list(first.parent.iterdir())) == 2, "no partial model is left"
    infos = [inspect_model(str(folder), engine="vllm") for folder in (first, other)]
    check_pair(*infos)
    assert infos[0].max_position == models.MAX_POSITIONS


def test_a_profile_of_random_weights_fits_its_model(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(models.tempfile, "tempdir", str(tmp_path))
    made = make_model(SMALL, 1)
    profile = every_head(made, SMALL)
    profile.check(model_fingerprint(inspect_model(str(made), engine="vllm")), SMALL.layers, SMALL.heads)
    assert {(head.layer, head.head) for head in profile.heads} == {(1, 0), (1, 1)}


def test_random_prompts_are_ones_that_the_pair_can_read() -> None:
    prompt = random_prompt(20_000, 0, 1)
    vocabulary = inspect_model(str(models.TOKENIZER), engine="tokenizer").vocab_size
    assert prompt.min() > 0
    assert prompt.max() == vocabulary - 1
    assert (prompt == random_prompt(20_000, 0, 1)).all()
    assert (prompt != random_prompt(20_000, 0, 2)).any()
