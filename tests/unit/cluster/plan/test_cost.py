"""The cost of the first token, against sums by hand."""

import pytest
from transformers import LlamaConfig, Qwen3MoeConfig

from cluster.plan.cost import QUESTION, first_token
from skim_common.models.costs import Read, ReadCost, read_cost

BIG = ReadCost(16e9, 5e5)  # 8B parameters
SMALL = ReadCost(2e9, 1e5)  # 1B parameters


def operations(cost, tokens):
    return cost.linear * tokens + cost.pair * tokens * (tokens + 1) / 2


def test_the_read_of_the_speculator_and_of_what_is_kept():
    found = first_token(SMALL, BIG, 8192, 0.25)
    dense, kept = operations(BIG, 8192), operations(BIG, 2048)
    assert found.whole == pytest.approx((operations(SMALL, 8192) + kept) / dense)
    assert found.windows == pytest.approx((8 * operations(SMALL, 1024 + QUESTION) + kept) / dense)


def test_a_rest_is_a_window_of_its_own():
    found = first_token(SMALL, BIG, 1024 + 300, 1.0)
    read = operations(SMALL, 1024 + QUESTION) + operations(SMALL, 300 + QUESTION)
    assert found.windows == pytest.approx(1 + read / operations(BIG, 1324))


def test_without_attention_the_length_does_not_matter():
    linear = ReadCost(2e9), ReadCost(16e9)
    assert first_token(*linear, 8192, 0.25).whole == first_token(*linear, 131072, 0.25).whole == 0.375


def test_attention_makes_a_small_model_of_many_heads_dear_at_length():
    many_heads = ReadCost(1e9, 4e5)
    short, long = (first_token(many_heads, BIG, tokens, 0.1) for tokens in (8192, 131072))
    assert long.whole > 2 * short.whole
    assert long.windows < short.windows


def test_only_the_active_experts_of_a_target_count():
    shape = {"hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4}
    moe = read_cost(
        Qwen3MoeConfig(**shape, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, head_dim=128)
    )
    dense = read_cost(LlamaConfig(**shape, intermediate_size=128 * 768, head_dim=128))
    assert first_token(SMALL, moe, 8192, 0.1).whole > 2 * first_token(SMALL, dense, 8192, 0.1).whole
    assert moe.linear_flops(Read(1)) < dense.linear_flops(Read(1)) / 5
