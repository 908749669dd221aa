"""The cost of the first token of a pair, against sums by hand."""

from dataclasses import replace

import pytest
from transformers import LlamaConfig, Qwen3MoeConfig

from cluster.plan.engine import FRAME, Model
from cluster.plan.fit import first_token
from skim_common.models.costs import Read, ReadCost, read_cost
from skim_common.models.size import ModelSize
from tests.unit.cluster.plan.shapes import model


def of_cost(linear, pair=0.0):
    """A model with these operations and without an output head."""
    return replace(model("llama-8b"), read=ReadCost(linear, pair), head=0)


BIG = of_cost(16e9, 5e5)  # 8B parameters
SMALL = of_cost(2e9, 1e5)  # 1B parameters


def operations(model, tokens):
    return model.read.linear * tokens + model.read.pair * tokens * (tokens + 1) / 2


def test_the_read_of_the_speculator_and_of_what_is_kept():
    found = first_token(SMALL, BIG, 8192, 0.25)
    dense, kept = operations(BIG, 8192), operations(BIG, 2048)
    assert found.whole == pytest.approx((operations(SMALL, 8192) + kept) / dense)
    second = operations(SMALL, 2458 + FRAME)
    assert found.windows == pytest.approx((2 * operations(SMALL, 4096 + FRAME) + second + kept) / dense)


def test_windows_are_equal():
    found = first_token(SMALL, BIG, 6144 + 300, 1.0)
    reads = 2 * operations(SMALL, 3222 + FRAME) + operations(SMALL, 1933 + FRAME)
    assert found.windows == pytest.approx(1 + reads / operations(BIG, 6444), rel=1e-3)
    alone = first_token(SMALL, BIG, 6144, 1.0)
    assert alone.windows == pytest.approx(1 + operations(SMALL, 6144 + FRAME) / operations(BIG, 6144)), "one window"


def test_each_read_ends_with_the_output_head():
    small, big = replace(SMALL, head=10**9), replace(BIG, head=4 * 10**9)
    dense, kept = operations(BIG, 8192) + 8e9, operations(BIG, 2048) + 8e9
    assert first_token(small, big, 8192, 0.25).whole == pytest.approx((operations(SMALL, 8192) + 2e9 + kept) / dense)


def test_without_attention_the_length_does_not_matter():
    linear = of_cost(2e9), of_cost(16e9)
    assert first_token(*linear, 8192, 0.25).whole == first_token(*linear, 131072, 0.25).whole == 0.375


def test_attention_makes_a_small_model_of_many_heads_dear_at_length():
    many_heads = of_cost(1e9, 4e5)
    short, long = (first_token(many_heads, BIG, tokens, 0.1) for tokens in (8192, 131072))
    assert long.whole > 2 * short.whole
    assert long.windows < short.windows


def test_only_the_active_experts_of_a_target_count():
    shape = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    configs = (
        Qwen3MoeConfig(**shape, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, head_dim=128),
        LlamaConfig(**shape, intermediate_size=128 * 768, head_dim=128),
    )
    moe, dense = (
        Model.of("big", text, ModelSize(131072, 30 * 10**9, round(read_cost(text).linear / 2))) for text in configs
    )
    assert first_token(SMALL, moe, 8192, 0.1).whole > 2 * first_token(SMALL, dense, 8192, 0.1).whole
    assert moe.read.linear_flops(Read(1)) < dense.read.linear_flops(Read(1)) / 5
