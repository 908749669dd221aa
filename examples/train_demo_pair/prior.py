"""A structured initialisation: writes the attention circuit of the task into the weights before training.

With random weights, a small model needs far more text to learn this circuit than a CPU can process in an hour. With
this start, its answers are right after minutes of training. All weights except the embeddings are trained.

Embeddings: a direction common to all tokens, plus a code of the token. Layer 0: head i attends to the token i + 1
places back (by RoPE on the common direction) and writes the short part of its code into a separate subspace. Layer 1:
the noun, adjective and attribute of the question match those before a record's value, in the dimensions that RoPE
hardly rotates; the code of the value is copied. "first" and "last" in the question add a preference for far or near
records, in a dimension that RoPE rotates by about a radian over the whole prompt.

With four layers or more, "first" and "last" have a separate circuit. Layer 1 searches, at the "is" of a record, for an
earlier record with the same key, and writes a mark if there is one. Layer 2 copies the mark to the value. Layer 3 does
the look-up: "last" prefers marked values, "first" avoids them.
"""

import math
from collections.abc import Callable, Sequence

import torch
from model import Attention, Llama, Shape, inverse_frequencies
from tokenizer import ASSISTANT, BOS, encode
from torch import Tensor
from torch.nn.functional import normalize

from demo_models.documents import ATTRIBUTES

EMBEDDING_STD = 0.08
SHARPNESS = 12.0  # attention logit per fast pair of RoPE dimensions, in heads that look a fixed number of tokens back
FAST = 4e-3  # minimum rotation of those pairs, in radians per token
SHORT = 16  # dimensions of a token's code that the look-back heads write
CODE_GAIN = 1.5
COPY_GAIN = 2.0
MATCH = 20.0  # attention logit of one matching word
VALUE = 20.0  # attention logit of a token that follows "is", where values are
ORDER = 28.0  # largest attention logit that "first" or "last" adds to a record
TWIN_GAIN = 1.5  # factor on the logits of the search for a twin, a record with the same key
NOTHING = 3.5  # matching words (of 4, with "is") below which a look-up finds nothing
NO_TWIN = 3.6  # matching words (of 4, with "is") below which no twin is found
MARK = 4.0  # size of a mark, in units of EMBEDDING_STD
MARK_ORDER = 30.0  # attention logit of a mark
STILL = 3.05e-5  # maximum rotation of the still pairs, in radians per token: 0.25 over 8192 tokens
SLOW = 2e-4  # the same for the pair that distinguishes near from far
# For noun, adjective and attribute: distance from the question's last token, distance from the record's value, number
# of dimensions to match in.
FIRST_VALUE = ((3, 2, 16), (4, 3, 16), (7, 6, 3))
# The same one token later. The fourth entry matches the first half of the value.
SECOND_VALUE = ((4, 3, 12), (5, 4, 10), (8, 7, 3), (0, 1, 11))
# The attributes are matched in few dimensions, so their codes are set by hand to be far apart.
ATTRIBUTE_SIGNS = ((1.0, 1.0, 1.0), (-1.0, 1.0, -1.0), (1.0, -1.0, -1.0), (-1.0, -1.0, 1.0))
# The same for a record's own key, with distances from its "is" in the first place.
TWIN = ((1, 2, 16), (2, 3, 16), (5, 6, 3))
ORDER_WORD = 8  # tokens from the question's last token back to "first" or "last"

Noise = Callable[..., Tensor]


def spread_codes(count: int, dimensions: int, noise: Noise) -> Tensor:
    """`count` vectors of length sqrt(dimensions), optimised to be far apart."""
    codes = noise(count, dimensions).requires_grad_()
    optimizer = torch.optim.Adam([codes], lr=0.03)
    for _ in range(150):
        unit = normalize(codes, dim=1)
        ((12 * unit @ unit.T).exp().sum() / count).log().backward()
        optimizer.step()
        optimizer.zero_grad()
    return normalize(codes.detach(), dim=1) * math.sqrt(dimensions)


def circuit_layers(shape: Shape) -> int:
    """Number of first layers that the structured start overwrites."""
    return 4 if shape.layers >= 4 else 2


def lay_in(model: Llama, seed: int) -> None:
    """Overwrite the weights of `model` (two layers or more, eight heads) with the structured start."""
    with torch.no_grad():
        start = _Start(model, seed)
        attentions = [layer.self_attn for layer in model.layers]
        for i, layer in enumerate(model.layers):
            layer.mlp.down_proj.weight.mul_(EMBEDDING_STD * 0.25)
            if i > 1:
                layer.self_attn.o_proj.weight.mul_(EMBEDDING_STD)
        start.look_back(
            attentions[0], start.common * math.sqrt(2 / model.shape.hidden), range(1, model.shape.heads + 1)
        )
        start.write_codes(attentions[0])
        if start.deep:
            start.mark_twins(attentions[1])
            start.look_back(attentions[2], start.one * 1.2, [1])
            start.carry_mark(attentions[2])
        start.look_up(attentions[3 if start.deep else 1])


class _Start:
    """The directions in one model's hidden state, and the weights made from them."""

    def __init__(self, model: Llama, seed: int):
        shape = self.shape = model.shape
        self.generator = torch.Generator().manual_seed(seed)
        length = shape.head_dim - 2  # of a token's code
        rest = length - SHORT
        other = normalize(self.noise(shape.vocabulary, rest), dim=1) * math.sqrt(rest)
        with torch.enable_grad():
            self.codes = spread_codes(shape.vocabulary, SHORT, self.noise)
        for attribute, signs in zip(ATTRIBUTES, ATTRIBUTE_SIGNS, strict=True):
            self.codes[encode(f" {attribute}")[0], : len(signs)] = torch.tensor(signs)
        basis = torch.linalg.qr(self.noise(shape.hidden, shape.hidden))[0]
        self.common, self.silent, self.token_code = basis[:, 0], basis[:, 1], basis[:, 2 : shape.head_dim]
        end = shape.head_dim + shape.heads * SHORT
        self.written = basis[:, shape.head_dim : end].split(SHORT, dim=1)
        self.scale = math.sqrt(shape.hidden / length)
        codes = torch.cat([self.codes, other], 1)
        codes[[BOS, ASSISTANT]] = 0  # they match and copy nothing; look-ups that find nothing attend to BOS
        embeddings = codes @ self.token_code.T * self.scale
        embeddings += self.common * math.sqrt(shape.hidden)
        embeddings[BOS] += self.silent * math.sqrt(shape.hidden)

        # Readers of the normalised input of layer 1. The norm scales codes by `gain`.
        gain = CODE_GAIN * math.sqrt(shape.hidden / (2 * shape.hidden + CODE_GAIN**2 * SHORT * shape.heads))
        self.readers = {n + 1: part / gain for n, part in enumerate(self.written)}  # reads the word n tokens back
        self.readers[0] = self.token_code[:, :SHORT] * CODE_GAIN / self.scale / gain  # reads the token itself
        self.read_silent = math.sqrt(2 / shape.hidden)
        self.one = self.common * CODE_GAIN / math.sqrt(shape.hidden) / gain  # reads the number 1
        self.deep = circuit_layers(shape) == 4
        if self.deep:
            # Two unused directions for "this key occurred before": at the "is" of a record, and copied to its value.
            self.mark, self.carried_mark = basis[:, end : end + 2].T
            self.read_mark = CODE_GAIN / MARK / gain
        model.embed_tokens.weight.copy_(embeddings * EMBEDDING_STD)

    def noise(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.generator)

    def reads(self, word: str, tokens_back: int) -> Tensor:
        """A reader that gives 1 if `word` is that many tokens back, and a small number elsewhere."""
        code = self.codes[encode(f" {word}")[0]]
        return self.readers[tokens_back] @ code / code.pow(2).sum()

    def blank(self, attention: Attention) -> None:
        """Set queries and keys to small noise."""
        for weight in (attention.q_proj.weight, attention.k_proj.weight):
            weight.copy_(self.noise(*weight.shape) * 0.004)

    def look_back(self, attention: Attention, one: Tensor, distances: Sequence[int]) -> None:
        """Set queries and keys so that head i attends to the token distances[i] places back."""
        half, size = self.shape.head_dim // 2, self.shape.head_dim
        angles = inverse_frequencies(self.shape)
        fast = (angles > FAST).float() * math.sqrt(SHARPNESS * math.sqrt(size))
        self.blank(attention)
        for key in attention.k_proj.weight.split(size):
            key[:half] += fast[:, None] * one
        for query, distance in zip(attention.q_proj.weight.split(size), distances, strict=False):
            turn = angles * distance
            query[:half] += (fast * turn.cos())[:, None] * one
            query[half:] -= (fast * turn.sin())[:, None] * one

    def write_codes(self, attention: Attention) -> None:
        """Set values and outputs: each head writes the short code of its attended token into its subspace."""
        for values in attention.v_proj.weight.split(self.shape.head_dim):
            values.zero_()
            values[:SHORT] = (self.token_code[:, :SHORT] * math.sqrt(2) / self.scale).T
        attention.o_proj.weight.zero_()
        for outputs, part in zip(attention.o_proj.weight.split(self.shape.head_dim, dim=1), self.written, strict=True):
            outputs[:, :SHORT] = part * EMBEDDING_STD * CODE_GAIN

    def look_up(self, attention: Attention) -> None:
        """Match words and copy values: even KV heads copy the first half of a value, odd KV heads the second."""
        size = self.shape.head_dim
        group = self.shape.heads // self.shape.kv_heads
        self.blank(attention)
        queries, keys = attention.q_proj.weight.split(group * size), attention.k_proj.weight.split(size)
        values, outputs = attention.v_proj.weight.split(size), attention.o_proj.weight.split(group * size, dim=1)
        for i in range(self.shape.kv_heads):
            first_half = i % 2 == 0
            ask, offer = self._match(FIRST_VALUE if first_half else SECOND_VALUE, after_is=1 if first_half else 2)
            if first_half and self.deep:
                self._order_by_mark(ask, offer)
            elif first_half:
                self._order_by_distance(ask, offer)
            queries[i].add_(ask.repeat(group, 1))
            keys[i].add_(offer)
            values[i].zero_()
            values[i][: size - 2] = self.token_code.T
            outputs[i].copy_((values[i].T * EMBEDDING_STD * COPY_GAIN).repeat(1, group))

    def _still(self) -> list[int]:
        """The dimensions of a head that RoPE hardly rotates."""
        return torch.cat([inverse_frequencies(self.shape) < STILL] * 2).nonzero()[:, 0].tolist()

    def _match(
        self, words: Sequence[tuple[int, int, int]], after_is: int, nothing: float = NOTHING
    ) -> tuple[Tensor, Tensor]:
        """Query and key weights [head_dim, hidden] that match `words` and prefer tokens `after_is` places after "is".

        A query that matches fewer than `nothing` words attends to the prompt's first token.
        """
        ask, offer = torch.zeros(2, self.shape.head_dim, self.shape.hidden)
        free, unit = iter(self._still()), math.sqrt(math.sqrt(self.shape.head_dim))
        for asked, offered, dimensions in words:
            for dimension in range(dimensions):
                place = next(free)
                ask[place] = self.readers[asked][:, dimension] * unit * math.sqrt(MATCH / dimensions)
                offer[place] = self.readers[offered][:, dimension] * unit * math.sqrt(MATCH / dimensions)
        place = next(free)
        ask[place] = self.one * unit * math.sqrt(VALUE)
        offer[place] = self.reads("is", after_is) * unit * math.sqrt(VALUE)
        place = next(free)
        ask[place] = self.one * unit * math.sqrt(MATCH) * nothing
        offer[place] = self.silent * self.read_silent * unit * math.sqrt(MATCH)
        return ask, offer

    def _order(self) -> Tensor:
        """A reader that gives 1 if the question says "last" and -1 if it says "first"."""
        return self.reads("last", ORDER_WORD) - self.reads("first", ORDER_WORD)

    def _order_by_distance(self, ask: Tensor, offer: Tensor) -> None:
        slow = int((inverse_frequencies(self.shape) < SLOW).nonzero().min())
        strength = math.sqrt(ORDER * math.sqrt(self.shape.head_dim))
        ask[self.shape.head_dim // 2 + slow] = self._order() * strength
        offer[slow] = self.one * strength

    def _order_by_mark(self, ask: Tensor, offer: Tensor) -> None:
        place, strength = self._still()[-1], math.sqrt(MARK_ORDER * math.sqrt(self.shape.head_dim))
        ask[place] = self._order() * strength
        offer[place] = self.carried_mark * self.read_mark * strength

    def mark_twins(self, attention: Attention) -> None:
        """The heads of the first group search, at the "is" of a record, for an earlier record with the same key.

        If there is one, they write a mark. If there is none, they attend to the prompt's first token.
        """
        size, heads = self.shape.head_dim, self.shape.heads // self.shape.kv_heads
        ask, offer = self._match(FIRST_VALUE, after_is=1)
        ask, _ = self._match(TWIN, after_is=1, nothing=NO_TWIN)
        self.blank(attention)
        attention.q_proj.weight[: heads * size] += ask.repeat(heads, 1) * TWIN_GAIN
        attention.k_proj.weight[:size] += offer
        attention.v_proj.weight[0] = self.one - self.silent * self.read_silent
        attention.o_proj.weight.mul_(EMBEDDING_STD)
        for output in attention.o_proj.weight[:, : heads * size].split(size, dim=1):
            output.zero_()
            output[:, 0] = self.mark * EMBEDDING_STD * MARK / heads

    def carry_mark(self, attention: Attention) -> None:
        """Head 0 looks one token back and copies that token's mark to the carried mark."""
        attention.v_proj.weight[0] = self.mark * self.read_mark
        attention.o_proj.weight[:, : self.shape.head_dim] = 0
        attention.o_proj.weight[:, 0] = self.carried_mark * EMBEDDING_STD * MARK
