"""A causal language model of random weights in transformers, with chunked prefill, SDPA and a preallocated KV cache.

transformers copies its whole cache with every token, and passes SDPA a mask tensor for a chunk after cached tokens,
which rules out flash attention. Here the cache is allocated once, and the mask of a chunk is torch's
`causal_lower_right`, which flash attention supports. Both matter at 128k tokens.
"""

from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import Cache, DynamicLayer

CHUNK = 8192
"""Prompt tokens per forward."""

_ATTENTION = "skim_one_buffer"

Queries = dict[int, torch.Tensor]
"""The last token's queries [H, D], by layer."""


def _attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_mask: Any, **kwargs: Any
) -> tuple[torch.Tensor, None]:
    """Causal attention. query: [1, H, tokens, D]; key, value: [1, G, all tokens so far, D]."""
    noted: Queries | None = kwargs.get("skim_queries")
    if noted is not None:
        noted[module.layer_idx] = query[0, :, -1].clone()
    length, group = query.shape[2], query.shape[1] // key.shape[1]
    if group > 1:
        key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    mask = None if length == 1 else causal_lower_right(length, key.shape[2])
    out = scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=kwargs["scaling"])
    return out.transpose(1, 2).contiguous(), None


AttentionInterface.register(_ATTENTION, _attend)
AttentionMaskInterface.register(_ATTENTION, lambda *args, **kwargs: None)


class _BufferLayer(DynamicLayer):
    """The keys and values of one layer: views on preallocated buffers [1, G, capacity, D]."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        one, heads, _, size = key_states.shape
        self._buffers = [key_states.new_empty((one, heads, self._capacity, size)) for _ in range(2)]
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True
        self.keys, self.values = (buffer[:, :, :0] for buffer in self._buffers)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.keys.shape[2]
        end = start + key_states.shape[2]
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:end] = new
        self.keys, self.values = (buffer[:, :, :end] for buffer in self._buffers)
        return self.keys, self.values


class TorchModel:
    """One model and its KV cache for `capacity` tokens."""

    def __init__(self, config: dict[str, Any], device: str, capacity: int, seed: int = 0) -> None:
        """config: the fields of config.json."""
        dtype = torch.bfloat16 if device == "cuda" else torch.float32
        made = AutoConfig.for_model(**config)
        torch.manual_seed(seed)
        with torch.device(device):
            model = AutoModelForCausalLM.from_config(made, dtype=dtype, attn_implementation=_ATTENTION)
        self.model = model.eval()
        self.device, self.layers = device, config["num_hidden_layers"]
        self.scale = config["head_dim"] ** -0.5
        self.cache = Cache(layers=[_BufferLayer(capacity) for _ in range(self.layers)])

    @property
    def length(self) -> int:
        """Number of tokens in the cache."""
        return int(self.cache.get_seq_length())

    def clear(self) -> None:
        """Remove all tokens from the cache; its buffers stay."""
        self.crop(0)

    def crop(self, length: int) -> None:
        """Remove all tokens after the first `length` from the cache."""
        for layer in self.cache.layers:
            if layer.is_initialized:
                layer.keys, layer.values = layer.keys[:, :, :length], layer.values[:, :, :length]

    def keys(self, length: int) -> list[torch.Tensor]:
        """The keys [1, G, length, D] of the first `length` tokens, by layer: a paged cache with one block."""
        return [layer.keys[:, :, :length] for layer in self.cache.layers]

    @torch.inference_mode()
    def read(
        self, ids: torch.Tensor, positions: torch.Tensor, *, last: int = 1, queries: Queries | None = None
    ) -> torch.Tensor:
        """Run the model over `ids` at `positions` (both int64 [T]), after the cached tokens.

        Returns the most likely next token after each of the last `last` tokens. queries: filled with the queries of the
        last token.
        """
        for start in range(0, len(ids), CHUNK):
            part = slice(start, start + CHUNK)
            more = {} if queries is None else {"skim_queries": queries}
            logits = self.model(
                ids[None, part],
                position_ids=positions[None, part],
                past_key_values=self.cache,
                use_cache=True,
                logits_to_keep=last,
                **more,
            ).logits
        return logits[0].argmax(-1)
