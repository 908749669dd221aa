"""A structured start for the speculator: the look-up that the task needs, laid into the weights before training.

From plain random weights, a small model needs far more text than a CPU reads in an hour to find this circuit. From
this start it is right within minutes, and training only has to sharpen it. Everything but the embeddings is trained.

Embeddings: a direction common to all tokens plus a code. Layer 0: head i looks i + 1 tokens back (the common direction
through RoPE) and writes the short part of the code it sees into a subspace of its own. Layer 1: the question's noun,
adjective and attribute match those before a record's value, in the dimensions of RoPE that hardly turn; the value's
code is copied. "first" and "last" in the question add a preference for far or near records, in a dimension of RoPE that
turns by about a radian over the whole prompt.

With four layers or more, "first" and "last" get a circuit of their own. Layer 1 asks, at the "is" of a record, for
an earlier record of the same key, and marks the place if there is one; layer 2 carries the mark on to the value; layer
3 does the look-up, "last" preferring and "first" avoiding marked values.
"""

import math
from collections.abc import Callable, Sequence

import torch
from model import Attention, Llama, Shape, inverse_frequencies
from tokenizer import ASSISTANT, BOS, encode
from torch import Tensor
from torch.nn.functional import normalize

from cluster.commands.demo_document import ATTRIBUTES

EMBEDDING_STD = 0.08
SHARPNESS = 12.0  # attention logit of each fast pair of RoPE dimensions in the heads that look a fixed way back
FAST = 4e-3  # radians a token, at least, of those pairs
SHORT = 16  # dimensions of a token's code that the look-back heads write
CODE_GAIN = 1.5
COPY_GAIN = 2.0
MATCH = 20.0  # attention logit of one matching word
VALUE = 20.0  # attention logit of standing where values stand, after "is"
ORDER = 28.0  # attention logit by which "first" or "last" moves a record, at most
TWIN_GAIN = 1.5  # how much more a twin must match than an answer
NOTHING = 3.5  # matching words (of 4, "is" counted) below which a look-up finds nothing
NO_TWIN = 3.6  # matching words (of 4, "is" counted) below which no twin is seen
MARK = 4.0  # size of a mark, in units of EMBEDDING_STD
MARK_ORDER = 30.0  # attention logit by which a mark counts
STILL = 3.05e-5  # radians a token, at most, of pairs that hardly turn: a quarter of a radian over 8192 tokens
SLOW = 2e-4  # and of the pair that tells near from far
# Tokens back as the question's last token sees it, as the record's value sees it, dimensions to match in: noun,
# adjective, attribute.
FIRST_VALUE = ((3, 2, 16), (4, 3, 16), (7, 6, 3))
# The same one token later; and the first half of the value must be the record's own.
SECOND_VALUE = ((4, 3, 12), (5, 4, 10), (8, 7, 3), (0, 1, 11))
# As the attributes are matched in few dimensions, their codes are set apart by hand.
ATTRIBUTE_SIGNS = ((1.0, 1.0, 1.0), (-1.0, 1.0, -1.0), (1.0, -1.0, -1.0), (-1.0, -1.0, 1.0))
# As the "is" of a record sees its own key, in the places of FIRST_VALUE.
TWIN = ((1, 2, 16), (2, 3, 16), (5, 6, 3))
ORDER_WORD = 8  # tokens from the question's last token back to "first" or "last"

Noise = Callable[..., Tensor]


def spread_codes(count: int, dimensions: int, noise: Noise) -> Tensor:
    """`count` vectors of length sqrt(dimensions), pushed apart from one another."""
    codes = noise(count, dimensions).requires_grad_()
    optimizer = torch.optim.Adam([codes], lr=0.03)
    for _ in range(150):
        unit = normalize(codes, dim=1)
        ((12 * unit @ unit.T).exp().sum() / count).log().backward()
        optimizer.step()
        optimizer.zero_grad()
    return normalize(codes.detach(), dim=1) * math.sqrt(dimensions)


def circuit_layers(shape: Shape) -> int:
    """How many of the first layers the structured start fills."""
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
    """The directions of one model's state, and the weights made from them."""

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
        codes[[BOS, ASSISTANT]] = 0  # these match nothing and copy nothing; look-ups that find nothing go to the first
        embeddings = codes @ self.token_code.T * self.scale
        embeddings += self.common * math.sqrt(shape.hidden)
        embeddings[BOS] += self.silent * math.sqrt(shape.hidden)

        # Readers of the state before layer 1, after its norm, which leaves codes `gain` times as large as they were.
        gain = CODE_GAIN * math.sqrt(shape.hidden / (2 * shape.hidden + CODE_GAIN**2 * SHORT * shape.heads))
        self.readers = {n + 1: part / gain for n, part in enumerate(self.written)}  # of the word n tokens back
        self.readers[0] = self.token_code[:, :SHORT] * CODE_GAIN / self.scale / gain  # of the token itself
        self.read_silent = math.sqrt(2 / shape.hidden)
        self.one = self.common * CODE_GAIN / math.sqrt(shape.hidden) / gain  # of the number 1
        self.deep = circuit_layers(shape) == 4
        if self.deep:
            # Two spare directions: "this key came before", at the "is" of a record and carried on to its value.
            self.mark, self.carried_mark = basis[:, end : end + 2].T
            self.read_mark = CODE_GAIN / MARK / gain
        model.embed_tokens.weight.copy_(embeddings * EMBEDDING_STD)

    def noise(self, *size: int) -> Tensor:
        return torch.randn(*size, generator=self.generator)

    def reads(self, word: str, tokens_back: int) -> Tensor:
        """A reader of 1 where `word` stands that far back, and of little elsewhere."""
        code = self.codes[encode(f" {word}")[0]]
        return self.readers[tokens_back] @ code / code.pow(2).sum()

    def blank(self, attention: Attention) -> None:
        """Nearly zero queries and keys."""
        for weight in (attention.q_proj.weight, attention.k_proj.weight):
            weight.copy_(self.noise(*weight.shape) * 0.004)

    def look_back(self, attention: Attention, one: Tensor, distances: Sequence[int]) -> None:
        """Queries and keys by which head i attends to the token distances[i] places back."""
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
        """Values that are the attended token's short code, written by each head into its subspace."""
        for values in attention.v_proj.weight.split(self.shape.head_dim):
            values.zero_()
            values[:SHORT] = (self.token_code[:, :SHORT] * math.sqrt(2) / self.scale).T
        attention.o_proj.weight.zero_()
        for outputs, part in zip(attention.o_proj.weight.split(self.shape.head_dim, dim=1), self.written, strict=True):
            outputs[:, :SHORT] = part * EMBEDDING_STD * CODE_GAIN

    def look_up(self, attention: Attention) -> None:
        """Match words, copy values: even KV heads for the first half of a value, odd ones for the second."""
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
        """The dimensions of a head that RoPE hardly turns."""
        return torch.cat([inverse_frequencies(self.shape) < STILL] * 2).nonzero()[:, 0].tolist()

    def _match(
        self, words: Sequence[tuple[int, int, int]], after_is: int, nothing: float = NOTHING
    ) -> tuple[Tensor, Tensor]:
        """Query and key weights [head_dim, hidden] that match `words` and prefer tokens `after_is` behind an "is".

        A query that matches less than `nothing` words goes to the prompt's first token.
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
        """A reader of 1 where the question says "last", of -1 where it says "first"."""
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
        """The first group's heads ask, at the "is" of a record, for an earlier record of the same key.

        They see the prompt's first token where there is none, and write a mark where there is one.
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
        """Head 0, which looks one token back, writes that token's mark as the carried mark."""
        attention.v_proj.weight[0] = self.mark * self.read_mark
        attention.o_proj.weight[:, : self.shape.head_dim] = 0
        attention.o_proj.weight[:, 0] = self.carried_mark * EMBEDDING_STD * MARK
