"""Scores of MLA layers (DeepSeek V2 and V3, Kimi K2): queries are absorbed, so that the latent cache holds the keys.

The cache of MLA holds one vector [L + R] per token: the normalised latent c (L = kv_lora_rank) and the rotary key r of
all heads (R = qk_rope_head_dim). The key of head h is [W_UK^h c, r]. So q·k = (W_UK^hT q_nope)·c + q_rope·r, and with
absorbed queries MLA is MQA with one KV head of size L + R (DeepSeek-V2, arXiv 2405.04434, 2.1.2 and appendix C).

Run on CPU with both of vLLM's backends (CPU_MLA in float32, AMX_MLA in bfloat16). Not run: any GPU.
"""

import torch
from vllm import _custom_ops as ops
from vllm.model_executor.layers.attention import MLAAttention


def absorbed(layer: MLAAttention, queries: torch.Tensor) -> torch.Tensor:
    """The queries [S, H, L + R] for the latent cache of `layer`, of captured queries [S, H, P + R] (P: no rotation).

    The product is that of `MLAAttention.forward_impl` for decode tokens, in the dtype of the model.
    """
    nope, rope = queries.split([layer.qk_nope_head_dim, layer.qk_rope_head_dim], dim=-1)
    by_head = nope.transpose(0, 1)
    if layer.is_amx_bmm_enabled:
        # This backend keeps W_UK only in a packed form.
        latent = by_head.new_empty((*by_head.shape[:2], layer.kv_lora_rank))
        ops.bmm_cpu(latent, by_head.contiguous(), layer.impl._w_uk_packed, True, None)
    else:
        latent = torch.bmm(by_head, layer.W_UK_T)
    return torch.cat([latent.transpose(0, 1), rope], dim=-1)
