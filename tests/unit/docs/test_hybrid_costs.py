"""docs/models.md: what a target would compute if its layers with linear attention read the whole text."""

from pathlib import Path

import pytest
import transformers

from skim_common.models.costs import Read, read_cost

KEPT = 0.2
MODELS = (transformers.Qwen3NextConfig(), transformers.Qwen3_5TextConfig())


def _shares(config, tokens):
    """Of the operations of a dense prefill: kept tokens alone, and the whole text for all but the attention layers."""
    cost, kept = read_cost(config), round(KEPT * tokens)
    dense, alone = (cost.linear_flops(read) + cost.attention_flops(read) for read in (Read(tokens), Read(kept)))
    heads = 3 * config.num_attention_heads + 2 * config.num_key_value_heads  # queries and their gates, keys, values
    projections = 2 * config.layer_types.count("full_attention") * config.hidden_size * config.head_dim * heads
    return alone / dense, (alone + (tokens - kept) * (cost.linear - projections)) / dense


@pytest.mark.parametrize("tokens", [8192, 32768, 131072])
def test_the_table_of_the_alternative(tokens):
    (next_alone, next_whole), (dense_alone, dense_whole) = (_shares(config, tokens) for config in MODELS)
    alone = sorted((next_alone, dense_alone))
    row = f"| {tokens:,} | {alone[0]:.2f} to {alone[1]:.2f} | {next_whole:.2f} | {dense_whole:.2f} |"
    assert row in Path(__file__).parents[3].joinpath("docs", "models.md").read_text(encoding="utf-8")
