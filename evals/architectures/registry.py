"""The architectures, and what a tiny model of each needs beyond the sizes that all have."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from skim_common.errors import SkimError


@dataclass(frozen=True)
class Recipe:
    """How a tiny model is made.

    architecture: its name in vLLM's registry. model_type: transformers' name of the config class. config: fields of it.
    dtype: of the engines. has_images: the model reads images too.
    """

    architecture: str
    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    has_images: bool = False


MODEL_TYPES = {
    "BailingMoeV2ForCausalLM": "bailing_moe",
    "BailingMoeV2_5ForCausalLM": "bailing_hybrid",
    "DeciLMForCausalLM": "nemotron-nas",
    "DeepseekForCausalLM": "deepseek",
    "IQuestCoderForCausalLM": "iquestcoder",
    "InternLM3ForCausalLM": "internlm3",
    "LLaMAForCausalLM": "llama",
    "NemotronHPuzzleForCausalLM": "nemotron_h_puzzle",
    "PhiMoEForCausalLM": "phimoe",
    "Rnj1ForCausalLM": "gemma3_text",
    "TeleChat3ForCausalLM": "telechat3",
}
"""Where neither the name of transformers' class nor vLLM's module gives it."""

_LLAMA4 = {"num_experts_per_tok": 1, "no_rope_layers": [1, 0, 1, 0], "attention_chunk_size": 32}
_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_d_ssm": 256}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_MROPE = {**_ROPE, "mrope_section": [6, 5, 5]}
# All of a head rotates, so that wrong positions show although half of the layers have none.
_MROPE_QWEN3 = {**_MROPE, "mrope_interleaved": True, "partial_rotary_factor": 1.0}
_ALL_EXPERTS = {"num_experts_per_tok": 4}
"""Rounded to bfloat16, a model would choose other ones."""
CONFIGS: Mapping[str, Mapping[str, Any]] = {
    "FalconH1ForCausalLM": _MAMBA,
    "FalconForCausalLM": {"ffn_hidden_size": 512},
    "GPTJForCausalLM": {"rotary_dim": 16},
    # A window of vLLM has one token more than transformers'; none here ends within the prompt.
    "Cohere2ForCausalLM": {"sliding_window": 512},
    "Cohere2MoeForCausalLM": {"sliding_window": 512},
    "DbrxForCausalLM": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0},
        "ffn_config": {"moe_top_k": 2},
    },
    "ExaoneMoeForCausalLM": {"sliding_window": 512, "sliding_windows": [512, None] * 2},
    "DeepseekV3ForCausalLM": {"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "Gemma4ForCausalLM": {"global_head_dim": 64},
    "Gemma3nForCausalLM": {
        "intermediate_size": 256,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_kv_shared_layers": 2,
        "activation_sparsity_pattern": [0.0] * 4,
    },
    "Glm4MoeForCausalLM": {"head_dim": 32},
    "Glm4MoeLiteForCausalLM": {"first_k_dense_replace": 1, "topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    "GptOssForCausalLM": _ALL_EXPERTS,
    "GraniteMoeHybridForCausalLM": {**_MAMBA, "layer_types": ["linear_attention", "full_attention"] * 2},
    "JambaForCausalLM": {"attn_layer_offset": 1, "attn_layer_period": 2, "mamba_dt_rank": 8},
    "Lfm2ForCausalLM": {"block_dim": 128, "block_ff_dim": 256, "block_auto_adjust_ff_dim": False},
    "Lfm2MoeForCausalLM": {"layer_types": ["conv", "full_attention"] * 2, "num_dense_layers": 1},
    "Llama4ForCausalLM": _LLAMA4,
    "LongcatFlashForCausalLM": {"num_layers": 2, "expert_ffn_hidden_size": 64, "zero_expert_num": 2},
    "MiniMaxM2ForCausalLM": {"rotary_dim": 16, "scoring_func": "sigmoid", "use_routing_bias": True},
    "MiniCPM3ForCausalLM": {"kv_lora_rank": 256, "qk_rope_head_dim": 32, "head_dim": 32},
    "NemotronHForCausalLM": {
        "ssm_state_size": 32,
        "mamba_num_heads": 8,
        "mamba_head_dim": 32,
        "layers_block_type": ["linear_attention", "mlp", "full_attention", "mlp"],
    },
    "PhiForCausalLM": {"num_key_value_heads": 4, "intermediate_size": 512},
    "Qwen3NextForCausalLM": {"rope_parameters": {**_ROPE, "partial_rotary_factor": 1.0}, **_ALL_EXPERTS},
    "Qwen3_5ForCausalLM": {"rope_parameters": _MROPE_QWEN3},
    "Qwen3_5MoeForCausalLM": {"rope_parameters": _MROPE_QWEN3, **_ALL_EXPERTS},
    "Zamba2ForCausalLM": {
        "layers_block_type": ["linear_attention", "hybrid"] * 2,
        "mamba_d_state": 32,
        "num_key_value_heads": 4,
    },
}
"""Fields of the config that an architecture needs, by its name."""

BFLOAT16: Sequence[str] = (
    "GptOssForCausalLM",
    "KimiLinearForCausalLM",
    "OlmoHybridForCausalLM",
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
"""Architectures whose kernels on CPU compute in bfloat16 alone: those of linear attention and of sinks."""

# vLLM's CPU platform asks for the architecture of the text part, which checkpoints do not name.
_QWEN3_VL = {"rope_parameters": _MROPE_QWEN3, "architectures": ["Qwen3ForCausalLM"]}
IMAGES: Mapping[str, Mapping[str, Any]] = {
    "Gemma3ForConditionalGeneration": {},
    "Gemma4ForConditionalGeneration": {"global_head_dim": 64},
    "Glm4vForConditionalGeneration": {
        "rope_parameters": {**_MROPE, "mrope_section": [2, 3, 3], "partial_rotary_factor": 0.5}
    },
    "InternVLForConditionalGeneration": {},
    "Llama4ForConditionalGeneration": _LLAMA4,
    "LlavaForConditionalGeneration": {},
    "Mistral3ForConditionalGeneration": {},
    "Qwen2VLForConditionalGeneration": {"rope_parameters": _MROPE},
    "Qwen2_5_VLForConditionalGeneration": {"rope_parameters": _MROPE},
    "Qwen3VLForConditionalGeneration": _QWEN3_VL,
    "Qwen3VLMoeForConditionalGeneration": {**_QWEN3_VL, "norm_topk_prob": True},
    "Qwen3_5ForConditionalGeneration": {"rope_parameters": _MROPE_QWEN3},
    "Qwen3_5MoeForConditionalGeneration": {"rope_parameters": _MROPE_QWEN3, **_ALL_EXPERTS},
}
"""Of the architectures that read images, those that are checked, with fields of their text part's config."""


def _dtype(name: str) -> str:
    return "bfloat16" if name in BFLOAT16 else "float32"


def named(names: Sequence[str]) -> list[Recipe]:
    """The recipes of these architectures; without names, of all. Raises SkimError for a name that there is not."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    )
    from vllm.model_executor.models import registry

    text = dict(registry._TEXT_GENERATION_MODELS)
    # vLLM runs them with the modules of transformers.
    text |= {k: v for k, v in registry._TRANSFORMERS_SUPPORTED_MODELS.items() if k.endswith("ForCausalLM")}
    modules = {name: module.rpartition(".")[2] for name, (module, _) in text.items()}
    of_text = modules | {name: kind for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()} | MODEL_TYPES
    of_images = {name: kind for kind, name in reversed(MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES.items())}
    recipes = {name: Recipe(name, of_text[name], CONFIGS.get(name, {}), _dtype(name)) for name in text} | {
        name: Recipe(name, of_images[name], {"text_config": config}, _dtype(name), has_images=True)
        for name, config in IMAGES.items()
    }
    if unknown := [name for name in names if name not in recipes]:
        raise SkimError(f"there is no text-generation architecture {unknown[0]} in vLLM's registry")
    return [recipes[name] for name in names or recipes]
