"""Tiny random checkpoints on disk, one per attention flavour, for comparing engines with the transformers oracle.

The random weights make every part count: attention is peaked enough to rank tokens, and biases and norm weights, which
transformers initialises to 0 and 1, are random too. An engine that omits one of them fails the comparison.
"""

import shutil
from pathlib import Path
from typing import Any, Literal

import torch
import transformers

Family = Literal[
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma2",
    "gemma3",
    "gpt_oss",
    "qwen3_next",
    "qwen3_5",
    "qwen3_5_moe",
    "falcon_h1",
    "qwen3_vl",
    "deepseek_v2",
    "deepseek_v3",
]
FAMILIES: tuple[Family, ...] = ("llama", "qwen2", "qwen3", "mistral")
"""The families whose layers are all alike. Of the others but DeepSeek and Falcon-H1, every second layer has full
attention."""

TOKENIZER = Path(__file__).parents[2] / "demo_models" / "speculator"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

ADD_ONE = ("gemma2", "gemma3", "qwen3_next", "qwen3_5", "qwen3_5_moe")
"""Their norms add 1 to their weight, except those of linear attention."""

WINDOW = 64
"""Tokens in the windows of the families with windowed layers."""

_CLASSES = {
    "llama": ("LlamaConfig", "LlamaForCausalLM"),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM"),  # QKV bias
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM"),  # QK norm
    "mistral": ("MistralConfig", "MistralForCausalLM"),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM"),  # soft cap
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM"),  # QK norm, other RoPE in windowed layers
    "gpt_oss": ("GptOssConfig", "GptOssForCausalLM"),  # sinks, QKV bias, experts
    "qwen3_next": ("Qwen3NextConfig", "Qwen3NextForCausalLM"),  # linear attention, experts
    "qwen3_5": ("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),  # linear attention, M-RoPE
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
    "falcon_h1": ("FalconH1Config", "FalconH1ForCausalLM"),  # attention and a state space in every layer
    "qwen3_vl": ("Qwen3VLConfig", "Qwen3VLForConditionalGeneration"),  # interleaved M-RoPE, QK norm
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM"),  # MLA
    "deepseek_v3": ("DeepseekV3Config", "DeepseekV3ForCausalLM"),  # MLA with low-rank queries
}

_GEMMA = {"tie_word_embeddings": True, "query_pre_attn_scalar": 8, "sliding_window": WINDOW}
# The only sizes of the latent vector and of its rotary part for which vLLM's CPU build has kernels.
_MLA = {
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 64,
    "v_head_dim": 32,
    "first_k_dense_replace": 99,
}
_EXPERTS = {
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    # All experts: bfloat16 would choose others than float32.
    "num_experts": 4,
    "num_experts_per_tok": 4,
}
_LINEAR = {
    # All of a head rotates, so that wrong positions show although half of the layers have none.
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
    "full_attention_interval": 2,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
_MROPE = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [12, 10, 10],
    "mrope_interleaved": True,
    "partial_rotary_factor": 1.0,
}
"""For heads of 64 dimensions."""
_ITS_OWN: dict[str, dict[str, Any]] = {
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 20.0},
    "gemma3": {**_GEMMA, "sliding_window_pattern": 2},
    "gpt_oss": {
        "sliding_window": WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 150000.0,
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 256,
        },
    },
    "qwen3_next": {**_LINEAR, **_EXPERTS},
    "qwen3_5": {**_LINEAR, "rope_parameters": _MROPE},
    "qwen3_5_moe": {**_LINEAR, **_EXPERTS, "rope_parameters": _MROPE},
    "falcon_h1": {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 32, "mamba_d_ssm": 256},
    "qwen3_vl": {"rope_parameters": _MROPE},
    "deepseek_v2": {**_MLA, "q_lora_rank": None},
    "deepseek_v3": {**_MLA, "q_lora_rank": 96},
}
_VISION = {"out_hidden_size": 256, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "depth": 1}
"""The part of Qwen3-VL that reads images. Nothing runs it: Skim serves the text."""


def build_model(
    path: str | Path,
    family: Family,
    *,
    head_dim: int = 64,
    heads: int = 4,
    kv_heads: int = 2,
    layers: int = 2,
    hidden: int | None = None,
    seed: int = 0,
    vocab_size: int = 1024,
    max_position: int = 8192,
    eos_token_id: int = 5,
    sliding_window: int | None = None,
    linear_attention: bool = True,
    rope: dict[str, Any] | None = None,
) -> str:
    """Write a float32 checkpoint with the demo pair's tokenizer into folder `path` and return `path`.

    hidden: heads * head_dim by default, because not every engine reads Qwen2's head_dim. eos_token_id: the weights do
    not depend on it, so a test can name a token that it has seen the model decode. sliding_window: of all layers,
    Mistral only. linear_attention: False: the families with such layers have full attention in all. rope:
    rope_parameters of config.json. Models with MLA have no experts.
    """
    hidden = hidden or heads * head_dim
    config_class, model_class = (getattr(transformers, name) for name in _CLASSES[family])
    all_attend = {} if linear_attention else {"full_attention_interval": 1}
    text = dict(
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads if family.startswith("deepseek") else kv_heads,
        head_dim=head_dim,
        max_position_embeddings=max_position,
        # Scores q·k/√D of unit-variance inputs then have a deviation of about 2: neither flat nor one-hot.
        initializer_range=(2 / hidden) ** 0.5,
        bos_token_id=1,
        eos_token_id=eos_token_id,
        pad_token_id=0,
        dtype="float32",
        **{"tie_word_embeddings": False, **_ITS_OWN.get(family, {}), **all_attend},
        **({"sliding_window": sliding_window} if family == "mistral" else {}),
        **({"rope_parameters": {"rope_theta": 10000.0, **rope}} if rope else {}),
    )
    # vLLM's CPU platform asks for the architecture of Qwen3-VL's text part, which its own checkpoints do not name.
    inner = {**text, "architectures": ["Qwen3ForCausalLM"]}
    parts = {"text_config": inner, "vision_config": _VISION, "tie_word_embeddings": False}
    config = config_class(**(parts if family == "qwen3_vl" else text))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = model_class(config)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                start = 1 if family in ADD_ONE and "linear_attn" not in name else 0
                if name.endswith(".bias"):
                    weight.normal_(0, 0.5)
                elif "embed_tokens" in name and config.tie_word_embeddings:
                    weight.mul_(0.25)  # else the most probable next token would always be the last one
                elif name.endswith("sinks"):
                    weight.copy_(torch.empty_like(weight).uniform_(4, 8).bfloat16())  # exact in any engine's dtype
                elif "q_norm" in name or "k_norm" in name:
                    weight.uniform_(1 - start, 2 - start)  # only these weights set how peaked attention is
                elif "norm" in name:
                    weight.uniform_(0.6 - start, 1.4 - start)
    model.save_pretrained(path)
    for name in TOKENIZER_FILES:
        shutil.copy(TOKENIZER / name, path)
    return str(path)


def random_prompt(length: int, *, seed: int = 0, vocab_size: int = 1024) -> list[int]:
    """Random token ids without special tokens (under 16), so that no engine stops at one or drops one.

    The tokenizer knows 724 of the default 1024 ids: pass vocab_size if ids are checked against `ModelInfo.vocab_size`.
    """
    return torch.randint(16, vocab_size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def load_model(path: str | Path) -> transformers.PreTrainedModel:
    """The checkpoint in float32 with eager attention, the only implementation that returns attention weights."""
    has_images = hasattr(transformers.AutoConfig.from_pretrained(path), "vision_config")
    kind = transformers.AutoModelForImageTextToText if has_images else transformers.AutoModelForCausalLM
    return kind.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
