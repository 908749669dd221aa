"""What it costs to read tokens and to keep them: floating-point operations and the KV cache, by a model's shape. Pure.

    linear    = 2 * active parameters * tokens
    attention = 2 * heads * (size of a key + size of a value) * layers * pairs

Reading n tokens behind c cached ones forms n * (c + (n + 1) / 2) pairs of a query and a key in each layer, bounded by a
window. Not counted: embeddings and the output head, of which a prompt needs one row; norms and biases; the scan of a
layer with linear attention or a state space, whose projections count as those of attention.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

WINDOWED = ("sliding_attention", "chunked_attention")
"""Layer types of transformers' configs whose queries see the latest tokens only."""
FULL = ("full_attention", "hybrid")
"""Layer types with a query and a key for each pair of tokens."""


@dataclass(frozen=True, slots=True)
class Read:
    """What an engine computes of a prompt: `tokens` tokens behind `cached` cached ones."""

    tokens: int
    cached: int = 0

    @classmethod
    def of(cls, size: float, cached: float = 0) -> "Read":
        """The rest of a prompt of `size` tokens. An engine computes at least the last one."""
        tokens = max(1, round(size - cached))
        return cls(tokens, max(0, round(size) - tokens))


@dataclass(frozen=True, slots=True)
class ReadCost:
    """The operations of a model. linear: per computed token. pair: per pair of a query and a key in all layers with
    full attention. window_pair: in those whose queries see at most `window` tokens.
    """

    linear: float
    pair: float = 0.0
    window_pair: float = 0.0
    window: int = 0

    def linear_flops(self, read: Read) -> float:
        return self.linear * read.tokens

    def attention_flops(self, read: Read) -> float:
        n, c = read.tokens, read.cached
        within = min(max(self.window - c, 0), n)  # tokens that see all tokens before them
        bounded = within * (c + (within + 1) / 2) + (n - within) * self.window
        return self.pair * n * (c + (n + 1) / 2) + self.window_pair * bounded

    def work(self, read: Read) -> float:
        """All operations, as the number of tokens without attention that need as many."""
        return (self.linear_flops(read) + self.attention_flops(read)) / self.linear


@dataclass(frozen=True, slots=True)
class CacheCost:
    """The numbers that the KV cache holds for a token; full, windowed, window: as in ReadCost."""

    full: int
    windowed: int = 0
    window: int = 0

    def numbers(self, tokens: float) -> float:
        """The numbers of a prompt of `tokens` tokens. A layer with a window keeps its latest tokens only."""
        return self.full * tokens + self.windowed * min(tokens, self.window)


LINEAR = ReadCost(1.0)
"""The cost where no shape is known: only the number of tokens counts."""


def read_cost(text: Any) -> ReadCost:
    """The cost of a text model with this transformers config; LINEAR for a config without a usual shape."""
    try:
        kinds = _layer_types(text)
        layers, experts = _layers(text, kinds), _expert_layers(text, len(kinds))
        attention = [_mixer(layer, kind) for layer, kind in zip(layers, kinds, strict=True)]
        parameters = sum(projections for projections, _ in attention) + sum(map(_feed_forward, layers, experts))
    except (AttributeError, TypeError):  # a name that this model's config does not have, or a list of one per layer
        return LINEAR
    full, windowed = _by_reach([pair for _, pair in attention], kinds)
    return ReadCost(2.0 * parameters, float(full), float(windowed), _window(text) * bool(windowed))


def cache_cost(text: Any) -> CacheCost:
    """The KV cache of a text model with this transformers config. The states of linear attention are not counted.

    MHA and GQA keep a key and a value per KV head (arXiv 2305.13245). MLA keeps one latent vector and one rotary key
    for all heads (arXiv 2405.04434, section 2.1). Raises AttributeError for a config without these names.
    """

    def numbers(layer: Any) -> int:
        if rank := getattr(layer, "kv_lora_rank", None):
            return int(rank + layer.qk_rope_head_dim)
        return 2 * _kv_heads(layer) * _head_size(layer)

    kinds = _layer_types(text)
    full, windowed = _by_reach([numbers(layer) for layer in _layers(text, kinds)], kinds)
    return CacheCost(full, windowed, _window(text) * bool(windowed))


def kv_head_count(text: Any) -> int:
    """The number of KV heads that tensor parallelism can divide: 1 for MLA, whose ranks all keep the whole latent."""
    return min(1 if getattr(layer, "kv_lora_rank", None) else _kv_heads(layer) for layer in _layers(text, [""]))


def _kv_heads(layer: Any) -> int:
    return int(getattr(layer, "num_key_value_heads", None) or layer.num_attention_heads)


def _layers(text: Any, kinds: Sequence[str]) -> Sequence[Any]:
    """The config of each layer. Heads of Gemma 4 have another size in layers with full attention."""
    return list(text.per_layer_config) if getattr(text, "is_heterogeneous", False) else [text] * len(kinds)


def _by_reach(costs: Sequence[int], kinds: Sequence[str]) -> list[int]:
    """The costs of all layers with full attention, and of those with a window."""
    pairs = list(zip(costs, kinds, strict=True))
    return [sum(cost for cost, kind in pairs if kind in reach) for reach in (FULL, WINDOWED)]


def _window(text: Any) -> int:
    return getattr(text, "sliding_window", None) or getattr(text, "attention_chunk_size", None) or 0


def _head_size(text: Any) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def _layer_types(text: Any) -> Sequence[str]:
    """The type of each layer. Without a list, a window holds for all layers."""
    if kinds := getattr(text, "layer_types", None):
        return list(kinds)
    windowed = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    return ["sliding_attention" if windowed else "full_attention"] * text.num_hidden_layers


def _mixer(text: Any, kind: str) -> tuple[int, int]:
    """As `_attention`. Models with gated delta nets (arXiv 2412.06464) have a gate beside the queries in all layers. A
    delta net has queries, keys and values of its own sizes, two numbers per head, and no pairs."""
    if not hasattr(text, "linear_num_value_heads"):
        return _attention(text)
    if kind != "linear_attention":
        projections, pair = _attention(text)
        return projections + text.hidden_size * _head_size(text) * text.num_attention_heads, pair
    keys = text.linear_num_key_heads * text.linear_key_head_dim
    values = text.linear_num_value_heads * text.linear_value_head_dim
    return text.hidden_size * (2 * keys + 3 * values + 2 * text.linear_num_value_heads), 0


def _attention(text: Any) -> tuple[int, int]:
    """The parameters of a layer's projections, and the operations of a pair in one layer. text: the layer's config."""
    hidden, heads = text.hidden_size, text.num_attention_heads
    if rank := getattr(text, "kv_lora_rank", None):  # MLA: keys and values come from one latent vector
        rope, nope, value = text.qk_rope_head_dim, text.qk_nope_head_dim, text.v_head_dim
        key, query_rank = nope + rope, getattr(text, "q_lora_rank", None)
        queries = query_rank * (hidden + heads * key) if query_rank else hidden * heads * key
        latent = hidden * (rank + rope) + rank * heads * (nope + value)
        return queries + latent + heads * value * hidden, 2 * heads * (key + value)
    size = _head_size(text)
    return hidden * size * (2 * heads + 2 * _kv_heads(text)), 4 * heads * size


def _feed_forward(text: Any, has_experts: bool) -> int:
    """The parameters of a layer's feed-forward part that compute one token, with a gate."""
    hidden: int = text.hidden_size
    if not has_experts:
        return 3 * hidden * int(getattr(text, "intermediate_size_mlp", None) or text.intermediate_size)
    each: int = getattr(text, "moe_intermediate_size", None) or text.intermediate_size
    number = getattr(text, "n_shared_experts", None) or getattr(text, "num_shared_experts", None) or 0
    shared: int = getattr(text, "shared_expert_intermediate_size", None) or each * number
    return 3 * hidden * (each * int(text.num_experts_per_tok) + shared) + hidden * expert_count(text)


def expert_count(text: Any) -> int:
    """The number of routed experts of a layer; 0 for a model without experts."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    return next((number for name in names if (number := getattr(text, name, None))), 0)


def _expert_layers(text: Any, layers: int) -> list[bool]:
    """For each layer, whether it has experts."""
    if not expert_count(text):
        return [False] * layers
    if kinds := getattr(text, "mlp_layer_types", None):
        return [kind == "sparse" for kind in kinds]
    listed, dense = getattr(text, "moe_layers", None), getattr(text, "mlp_only_layers", None) or ()
    first, step = getattr(text, "first_k_dense_replace", None) or 0, getattr(text, "decoder_sparse_step", None) or 1
    return [
        layer in listed if listed else layer >= first and layer not in dense and (layer + 1) % step == 0
        for layer in range(layers)
    ]
