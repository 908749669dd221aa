"""The oracle for a speculator's scores: transformers' eager attention and plain loops. Slow, simple, independent.

Shares no code with speculator_service. Attention comes as weights from the model, not as queries and keys, so that
rotary embedding, QK norm, biases and GQA are all transformers' own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import Cache, PreTrainedModel

from kv_transfer.options import SelectionOptions
from speculator_service.scoring.importance import POOL_KERNEL


@dataclass(frozen=True)
class OracleScores:
    """importance: float32 [M]. look_ahead_tokens: greedy, at most `look_ahead`, an EOS included, nothing after it."""

    importance: torch.Tensor
    look_ahead_tokens: list[int]


@torch.inference_mode()
def score(
    model: PreTrainedModel,
    token_ids: list[int],
    options: SelectionOptions,
    past: Cache | None = None,
    decoded: Sequence[int] | None = None,
) -> OracleScores:
    """Importance of each of the M prompt tokens and the tokens decoded ahead. past: an empty cache of another kind.

    decoded: the tokens that an engine in bfloat16 decoded ahead, read in place of own ones.
    Positions are consecutive and a cache is always used. (Given position_ids with gaps, no mask and no cache,
    transformers 5.23 treats the gaps as packed sequences and masks across them without a warning.)
    """
    whole, has_sinks = _whole_layers(model), any(name.endswith("sinks") for name, _ in model.named_parameters())
    eos = model.generation_config.eos_token_id
    eos_ids = {eos} if isinstance(eos, int) else set(eos or ())
    prompt = len(token_ids)
    tokens: list[int] = []
    steps = []

    def read_one(token: int) -> int:
        """Read a token with its attention weights as one more step; returns the most likely next token."""
        nonlocal past
        out = model(torch.tensor([[token]]), past_key_values=past, use_cache=True, output_attentions=True)
        past = out.past_key_values
        weights = [out.attentions[layer][0, :, 0].double() for layer in whole]
        to_prompt = [w[:, :prompt] for w in weights]
        # transformers leaves out the sink's weight, which is the rest to 1.
        steps.append(
            [(w, 1 - own.sum(-1) if has_sinks else 0 * w[:, 0]) for w, own in zip(to_prompt, weights, strict=True)]
        )
        return int(out.logits[0, -1].argmax())

    # Step 0 is the last prompt token; each later step is a decoded token, until there are enough or one is an EOS.
    if prompt > 1:
        past = model(torch.tensor([token_ids[:-1]]), past_key_values=past, use_cache=True).past_key_values
    token = read_one(token_ids[-1])
    while len(tokens) < options.look_ahead:
        token = token if decoded is None else decoded[len(tokens)]
        tokens.append(token)
        if token in eos_ids:
            break
        token = read_one(token)
    total = torch.stack([_step_importance(step, options) for step in steps]).sum(0)
    return OracleScores((total / len(steps)).float(), tokens)


@torch.inference_mode()
def score_by_heads(
    model: PreTrainedModel,
    token_ids: list[int],
    heads: Sequence[tuple[int, int, float]],
    rows: Sequence[int],
    row_weights: Sequence[float],
) -> torch.Tensor:
    """float32 [M]: the attention of single heads, summed over weighted rows and heads.

    heads: (layer, head, weight). rows: rising prompt positions; each sees the tokens up to itself.
    """
    total, past, read = torch.zeros(len(token_ids)).double(), None, 0
    for row, weight in zip(rows, row_weights, strict=True):
        if row > read:
            past = model(torch.tensor([token_ids[read:row]]), past_key_values=past, use_cache=True).past_key_values
        out = model(torch.tensor([[token_ids[row]]]), past_key_values=past, use_cache=True, output_attentions=True)
        past, read = out.past_key_values, row + 1
        for layer, head, of_head in heads:
            total[: row + 1] += weight * of_head * out.attentions[layer][0, head, 0].double()
    return total.float()


def _whole_layers(model: PreTrainedModel) -> list[int]:
    """Which of the attentions that the model returns cover the whole prompt. Linear attention returns none."""
    text = model.config.get_text_config()
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    returned = [kind for kind in kinds if kind != "linear_attention"]
    return [i for i, kind in enumerate(returned) if kind in ("full_attention", "hybrid")]


def _step_importance(layers: list[tuple[torch.Tensor, torch.Tensor]], options: SelectionOptions) -> torch.Tensor:
    """One step's [M] from its attention weights, a tensor [heads, M] and the sinks' weights [heads] per layer."""
    half = 0 if len(layers) <= 4 else min(len(layers) // 2, len(layers) - 4)
    layers = layers[{"all": 0, "last_half": half, "last4": -4, "last1": -1}[options.layers] :]
    per_layer = []
    for heads, sinks in layers:
        # The weights of prompt and sink, rescaled to sum 1, equal a softmax over the prompt (and the sink) only.
        pooled = [_pool(w / (w.sum() + sink), POOL_KERNEL) for w, sink in zip(heads, sinks, strict=True)]
        per_layer.append(torch.stack(pooled).amax(0))
    stacked = torch.stack(per_layer)
    return stacked.amax(0) if options.aggregation == "max" else stacked.mean(0)


def _pool(weights: torch.Tensor, kernel: int) -> torch.Tensor:
    """Average over `kernel` neighbours; positions outside the prompt count as zeros."""
    half = kernel // 2
    padded = torch.cat([torch.zeros(half).double(), weights, torch.zeros(half).double()])
    total = torch.zeros_like(weights)
    for shift in range(kernel):
        total += padded[shift : shift + weights.numel()]
    return total / kernel
