"""The exact distribution of sampled continuations, enumerated, and a chi-square test against it."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from kv_transfer.messages import KeptPrompt
from tests.reference.generation_oracle import GenerationOracle


def sampled_from(
    logprobs: torch.Tensor,
    *,
    temperature: float,
    top_p: float,
    min_p: float = 0.0,
    logit_bias: Mapping[int, float] | None = None,
) -> torch.Tensor:
    """The distribution [..., vocabulary] after these parameters are applied to these log probabilities."""
    logits = logprobs.double().clone()
    for token, bias in (logit_bias or {}).items():
        logits[..., token] += bias
    probs = (logits / temperature).softmax(-1)
    probs[probs < min_p * probs.amax(-1, keepdim=True)] = 0
    probs /= probs.sum(-1, keepdim=True)
    ordered, ids = probs.sort(dim=-1, descending=True)
    # Keep the smallest set with mass top_p: a token stays if the more probable tokens do not reach it.
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
    kept = torch.zeros_like(probs).scatter(-1, ids, ordered)
    return kept / kept.sum(-1, keepdim=True)


def continuations(oracle: GenerationOracle, prompt: KeptPrompt, vocab_size: int, **sampling: Any) -> torch.Tensor:
    """float64 [vocab_size, vocab_size, vocab_size]: the probability of each continuation of three tokens.

    vocab_size: only so many tokens, those with the lowest ids, are allowed. sampling: the parameters of `sampled_from`.
    """
    joint = torch.zeros(vocab_size, vocab_size, vocab_size, dtype=torch.float64)
    for a in range(vocab_size):
        for b in range(vocab_size):
            steps = sampled_from(oracle.logprobs(prompt, [a, b, 0])[:, :vocab_size], **sampling)
            joint[a, b] = steps[0, a] * steps[1, b] * steps[2]
    return joint


def chi_square_p(counts: Counter[tuple[int, int, int]], expected: torch.Tensor) -> float:
    """The p value of these counts under `expected` [vocabulary]^3. Cells with fewer than 5 are merged.

    0 if a continuation occurs that has probability 0.
    """
    return _p_value(*_chi_square(counts, expected))


def blocks_p(answers: Iterable[Sequence[int]], table: torch.Tensor) -> float:
    """As `chi_square_p`, over blocks of three tokens of the answers. The next token must depend on the last one only.

    table: float64 [vocabulary, vocabulary], the distribution after each token. A block is compared given the token
    before it, so that blocks which share none of their three are independent.
    """
    counts: defaultdict[int, Counter[tuple[int, int, int]]] = defaultdict(Counter)
    for answer in answers:
        for i in range(0, len(answer) - 3, 3):
            before, first, second, third = answer[i : i + 4]
            counts[before][first, second, third] += 1
    parts = [
        _chi_square(found, table[before][:, None, None] * table[:, :, None] * table[None])
        for before, found in counts.items()
    ]
    return _p_value(sum(statistic for statistic, _ in parts), sum(freedom for _, freedom in parts))


def _chi_square(counts: Counter[tuple[int, int, int]], expected: torch.Tensor) -> tuple[float, int]:
    """The statistic and its degrees of freedom."""
    total = counts.total()
    seen = torch.zeros_like(expected)
    for continuation, count in counts.items():
        seen[continuation] = count
    if seen[expected == 0].any():
        return math.inf, 1
    rare = expected * total < 5
    observed = torch.cat((seen[~rare], seen[rare].sum()[None]))
    wanted = torch.cat((expected[~rare], expected[rare].sum()[None])) * total
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    return float(((observed - wanted) ** 2 / wanted).sum()), wanted.numel() - 1


def _p_value(statistic: float, freedom: int) -> float:
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))
