"""The operations of reading, compared with parameter counts of transformers and with sums over pairs."""

import itertools

import pytest
import torch
import transformers

from skim_common.models.costs import LINEAR, Read, ReadCost, cache_cost, expert_count, kv_head_count, read_cost

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
MLA = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 12, "q_lora_rank": 24}

CONFIGS = {
    "llama": transformers.LlamaConfig(**SHAPE, head_dim=32),
    "mixtral": transformers.MixtralConfig(**SHAPE, num_local_experts=8, num_experts_per_tok=2),
    "qwen2_moe": transformers.Qwen2MoeConfig(
        **SHAPE, **EXPERTS, num_experts=8, shared_expert_intermediate_size=48, decoder_sparse_step=2
    ),
    "qwen3_moe": transformers.Qwen3MoeConfig(**SHAPE, **EXPERTS, num_experts=8, mlp_only_layers=[1]),
    "deepseek_v3": transformers.DeepseekV3Config(
        **{**SHAPE, "num_key_value_heads": 4}, **EXPERTS, **MLA, n_routed_experts=8, first_k_dense_replace=1, n_group=2
    ),
    "deepseek_v2": transformers.DeepseekV2Config(
        **{**SHAPE, "num_key_value_heads": 4}, **EXPERTS, **{**MLA, "q_lora_rank": None}, n_routed_experts=8
    ),
    "gemma3": transformers.Gemma3TextConfig(**SHAPE, head_dim=16),
    "gemma4": transformers.Gemma4TextConfig(
        **SHAPE, head_dim=16, global_head_dim=32, hidden_size_per_layer_input=0, sliding_window=8
    ),
}
_DELTA = {
    "head_dim": 16,
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 8,
    "linear_key_head_dim": 24,
    "linear_value_head_dim": 16,
}
HYBRIDS = {
    "qwen3_next": transformers.Qwen3NextConfig(**SHAPE, **EXPERTS, **_DELTA, num_experts=8),
    "qwen3_5": transformers.Qwen3_5TextConfig(**SHAPE, **_DELTA),
}
"""With gated delta nets, whose sizes differ from those of their attention."""


@pytest.mark.parametrize("name", [*CONFIGS, *HYBRIDS])
def test_two_operations_for_each_parameter_that_computes_a_token(name):
    """Norms, biases, convolutions and the gates of shared experts are not counted: less than a fiftieth here."""
    config = {**CONFIGS, **HYBRIDS}[name]
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    table = model.get_input_embeddings().weight
    layers = {key: weight.numel() for key, weight in model.base_model.named_parameters() if weight is not table}
    experts = sum(count for key, count in layers.items() if ".experts." in key)
    idle = experts * (1 - config.num_experts_per_tok / expert_count(config)) if experts else 0
    assert read_cost(config).linear == pytest.approx(2 * (sum(layers.values()) - idle), rel=0.02)


def test_the_pairs_of_each_kind_of_attention():
    assert read_cost(CONFIGS["llama"]).pair == 4 * 4 * 4 * 32
    mla = read_cost(CONFIGS["deepseek_v3"])
    assert mla.pair == 4 * 2 * 4 * (8 + 16 + 12)
    gemma = read_cost(CONFIGS["gemma3"])
    layers = CONFIGS["gemma3"].layer_types
    full = layers.count("full_attention")
    assert (gemma.pair, gemma.window_pair) == (full * 4 * 4 * 16, (len(layers) - full) * 4 * 4 * 16)
    assert gemma.window == CONFIGS["gemma3"].sliding_window
    mistral = read_cost(transformers.MistralConfig(**SHAPE, sliding_window=64))
    assert (mistral.pair, mistral.window_pair, mistral.window) == (0, 4 * 4 * 4 * 16, 64)
    assert read_cost(transformers.MistralConfig(**SHAPE, sliding_window=None)).window_pair == 0


def test_layers_whose_heads_differ_in_size():
    """Of Gemma 4, those with full attention are larger."""
    gemma = CONFIGS["gemma4"]
    full = gemma.layer_types.count("full_attention")
    cost = read_cost(gemma)
    assert (cost.pair, cost.window_pair) == (full * 4 * 4 * 32, (4 - full) * 4 * 4 * 16)
    assert cache_cost(gemma).numbers(5) == 5 * 2 * 2 * (full * 32 + (4 - full) * 16)
    assert kv_head_count(gemma) == 2


def test_layers_with_linear_attention_have_no_pairs():
    config = transformers.Qwen3NextConfig(**SHAPE, **EXPERTS, head_dim=16, num_experts=8, full_attention_interval=2)
    assert read_cost(config).pair == 2 * 4 * 4 * 16


@pytest.mark.parametrize(("tokens", "cached"), itertools.product((1, 7, 40, 300), (0, 5, 63, 64, 200)))
def test_pairs_are_counted_one_by_one(tokens, cached):
    seen = [cached + i for i in range(1, tokens + 1)]
    assert ReadCost(1.0, pair=1.0).attention_flops(Read(tokens, cached)) == sum(seen)
    windowed = ReadCost(1.0, window_pair=1.0, window=64)
    assert windowed.attention_flops(Read(tokens, cached)) == sum(min(64, s) for s in seen)


def test_work_is_counted_in_tokens_without_attention():
    cost = ReadCost(2000.0, pair=1.0)
    assert cost.work(Read(3999)) == pytest.approx(2 * 3999)
    assert LINEAR.work(Read(3999, 1000)) == 3999


def test_at_least_one_token_is_read():
    assert Read.of(1000, 1000) == Read(1, 999)
    assert Read.of(1000, 128) == Read(872, 128)
    assert Read.of(1000, 5000) == Read(1, 999)


def test_a_config_of_another_shape_costs_by_its_tokens():
    assert read_cost(transformers.MambaConfig(hidden_size=64, num_hidden_layers=2)) == LINEAR
    assert read_cost(transformers.OpenELMConfig() if hasattr(transformers, "OpenELMConfig") else object()) == LINEAR


@pytest.mark.parametrize("name", CONFIGS)
def test_the_cache_holds_what_transformers_keeps(name):
    """The elements of the keys and values of 5 tokens. For MLA transformers keeps the decompressed keys and values."""
    config = CONFIGS[name]
    if name.startswith("deepseek"):
        assert cache_cost(config).numbers(5) == 5 * 4 * (32 + 8)
        return
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    cache = model(torch.tensor([[1, 2, 3, 4, 5]]), use_cache=True).past_key_values
    assert cache_cost(config).numbers(5) == sum(layer.keys.numel() + layer.values.numel() for layer in cache.layers)


def test_linear_attention_keeps_no_tokens_and_a_window_keeps_the_latest():
    config = transformers.Qwen3NextConfig(**SHAPE, **EXPERTS, head_dim=16, num_experts=8, full_attention_interval=2)
    assert cache_cost(config).numbers(1) == 2 * 2 * 2 * 16
    mistral = cache_cost(transformers.MistralConfig(**SHAPE, sliding_window=64))
    assert mistral.numbers(50) == 50 * 4 * 2 * 2 * 16
    assert mistral.numbers(500) == mistral.numbers(64)
