"""A structured start for the speculator: the look-up that the task needs, laid into the weights before training.

From plain random weights, a small model needs far more text than a CPU reads in an hour to find this circuit. From
this start it is right within minutes, and training only has to sharpen it. Everything stays trainable.

Embeddings: a direction common to all tokens plus a random code. Layer 0: head i looks i + 1 tokens back (the common
direction through RoPE) and writes a short code of the word it sees into a subspace of its own. Layer 1: the question's
noun, adjective and attribute match those before a record's value, in the dimensions of RoPE that hardly turn; the
value's code is copied. "first" and "last" in the question add a preference for far or near records, in a dimension of
RoPE that turns by about a radian over the whole prompt.
"""

import math

import torch
from model import Attention, Llama, inverse_frequencies
from tokenizer import encode
from torch import Tensor

EMBEDDING_STD = 0.08
SHARPNESS = 45.0  # of the heads that look a fixed number of tokens back
CODE_GAIN = 1.5
COPY_GAIN = 2.0
MATCH = 8.0  # attention logit of one matching word
ORDER = 6.0  # attention logit by which "first" or "last" moves a record, at most
LONGEST = 16384
# Tokens back, (as the question's last token sees it, as the record's value sees it): noun, adjective, attribute.
FIRST_VALUE = ((3, 2), (4, 3), (7, 6))
# The same one token later; the first half of the value must be the record's own.
SECOND_VALUE = ((4, 3), (5, 4), (8, 7), (0, 1))
ORDER_WORD = 8  # tokens from the question's last token back to "first" or "last"


@torch.no_grad()
def lay_in(model: Llama, seed: int) -> None:
    """Overwrite the weights of `model` (two layers or more, eight heads) with the structured start."""
    shape = model.shape
    generator = torch.Generator().manual_seed(seed)

    def noise(*size: int) -> Tensor:
        return torch.randn(*size, generator=generator)

    def orthonormal(rows: int, columns: int) -> Tensor:
        return torch.linalg.qr(noise(rows, columns))[0]

    code = shape.head_dim  # dimensions of a token's code
    short = (shape.hidden - code) // shape.heads  # dimensions of the code that a look-back head writes
    basis = orthonormal(shape.hidden, shape.hidden)
    common = basis[:, 0].clone()
    token_code = basis[:, :code].clone()
    token_code[:, 0] = 0
    scale = EMBEDDING_STD * math.sqrt(shape.hidden / code)
    model.embed_tokens.weight.copy_(
        noise(shape.vocabulary, code) @ token_code.T * scale + common * EMBEDDING_STD * math.sqrt(shape.hidden)
    )

    # Layer 0. subspace[n] is where the word n tokens back is written; subspace[0] reads the token itself.
    shorten = orthonormal(code, short) * math.sqrt(2 * code / shape.hidden)
    subspace = {n + 1: basis[:, code + n * short : code + (n + 1) * short] for n in range(shape.heads)}
    values = torch.zeros(shape.head_dim, shape.hidden)
    values[:short] = (token_code @ shorten).T
    _look_back(model.layers[0].self_attn, common, noise)
    model.layers[0].self_attn.v_proj.weight.copy_(values.repeat(shape.kv_heads, 1))
    write = torch.zeros(shape.hidden, shape.heads * shape.head_dim)
    for head in range(shape.heads):
        write[:, head * shape.head_dim : head * shape.head_dim + short] = subspace[head + 1] * EMBEDDING_STD * CODE_GAIN
    model.layers[0].self_attn.o_proj.weight.copy_(write)
    subspace[0] = token_code @ shorten * CODE_GAIN / math.sqrt(2)

    # Layer 1. The norm before it divides by the length of embedding plus written codes.
    norm = math.sqrt(shape.hidden / (2 * shape.hidden + CODE_GAIN**2 * short * shape.heads))
    first, last = (model.embed_tokens.weight[encode(f" {word}")[0]] for word in ("first", "last"))
    difference = ((first - last) / (EMBEDDING_STD * math.sqrt(2))) @ token_code @ shorten
    order = subspace[ORDER_WORD] @ difference / difference.pow(2).sum() / (CODE_GAIN * norm)
    _match(model.layers[1].self_attn, subspace, CODE_GAIN * norm, order, common, noise)
    _copy(model.layers[1].self_attn, token_code)
    for i, layer in enumerate(model.layers):
        layer.mlp.down_proj.weight.mul_(EMBEDDING_STD * 0.25)
        if i > 1:
            layer.self_attn.o_proj.weight.mul_(EMBEDDING_STD)


def _look_back(attention: Attention, common: Tensor, noise) -> None:
    """Queries and keys by which head i attends to the token i + 1 places back."""
    shape = attention.shape
    half, size = shape.head_dim // 2, shape.head_dim
    angles = inverse_frequencies(shape)
    fast = (angles > 1e-3).float() * math.sqrt(SHARPNESS * 6 / float((angles > 1e-3).sum()))
    read = common[None] / math.sqrt(shape.hidden / 2)
    queries, keys = noise(shape.heads * size, shape.hidden) * 0.02, noise(shape.kv_heads * size, shape.hidden) * 0.02
    for kv_head in range(shape.kv_heads):
        keys[kv_head * size : kv_head * size + half] += fast[:, None] * read
    for head in range(shape.heads):
        turn = angles * (head + 1)
        queries[head * size : head * size + half] += (fast * turn.cos())[:, None] * read
        queries[head * size + half : (head + 1) * size] -= (fast * turn.sin())[:, None] * read
    attention.q_proj.weight.copy_(queries)
    attention.k_proj.weight.copy_(keys)


def _match(
    attention: Attention, subspace: dict[int, Tensor], deviation: float, order: Tensor, common: Tensor, noise
) -> None:
    """Queries and keys that match words; even KV heads for the first half of a value, odd ones for the second.

    deviation: of a number in a subspace after the norm. order: reads +1/2 for "first", -1/2 for "last" (about).
    """
    shape = attention.shape
    half, size, short = shape.head_dim // 2, shape.head_dim, subspace[1].shape[1]
    angles = inverse_frequencies(shape)
    still = torch.cat([angles * LONGEST < 1.5] * 2)
    slow = int((angles * LONGEST >= 1.5).nonzero().max())
    strength = math.sqrt(MATCH * math.sqrt(size) / (deviation**2 * short))
    queries, keys = noise(shape.heads * size, shape.hidden) * 0.02, noise(shape.kv_heads * size, shape.hidden) * 0.02
    group = shape.heads // shape.kv_heads
    for kv_head in range(shape.kv_heads):
        ask, offer = torch.zeros(size, shape.hidden), torch.zeros(size, shape.hidden)
        for asked, offered in FIRST_VALUE if kv_head % 2 == 0 else SECOND_VALUE:
            place = torch.zeros(size, short)
            place[still] = torch.linalg.qr(noise(int(still.sum()), short))[0]
            ask += place @ subspace[asked].T * strength
            offer += place @ subspace[offered].T * strength
        if kv_head % 2 == 0:
            amplitude = math.sqrt(2 * ORDER * math.sqrt(size))
            ask[half + slow] -= amplitude * order
            offer[slow] += amplitude * common / math.sqrt(shape.hidden / 2)
        keys[kv_head * size : (kv_head + 1) * size] += offer
        queries[kv_head * group * size : (kv_head + 1) * group * size] += ask.repeat(group, 1)
    attention.q_proj.weight.copy_(queries)
    attention.k_proj.weight.copy_(keys)


def _copy(attention: Attention, token_code: Tensor) -> None:
    """Values and outputs that write the attended token's code where the output embedding reads it."""
    shape = attention.shape
    attention.v_proj.weight.copy_(token_code.T.repeat(shape.kv_heads, 1))
    attention.o_proj.weight.copy_((token_code * EMBEDDING_STD * COPY_GAIN).repeat(1, shape.heads))
