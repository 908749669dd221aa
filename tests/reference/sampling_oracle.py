"""The exact distribution of sampled continuations, enumerated, and a chi-square test against it."""

from collections import Counter

import torch

from kv_transfer.messages import KeptPrompt
from tests.reference.generation_oracle import GenerationOracle


def sampled_from(logprobs: torch.Tensor, *, temperature: float, top_p: float) -> torch.Tensor:
    """The distribution [..., vocabulary] that temperature and top-p leave of these log probabilities."""
    probs = (logprobs.double() / temperature).softmax(-1)
    ordered, ids = probs.sort(dim=-1, descending=True)
    # The smallest set with mass top_p: a token stays if those before it do not reach it.
    ordered[ordered.cumsum(-1) - ordered >= top_p] = 0
    kept = torch.zeros_like(probs).scatter(-1, ids, ordered)
    return kept / kept.sum(-1, keepdim=True)


def continuations(
    oracle: GenerationOracle, prompt: KeptPrompt, vocab_size: int, *, temperature: float, top_p: float
) -> torch.Tensor:
    """float64 [vocabulary, vocabulary, vocabulary]: the probability of each continuation of three tokens."""
    joint = torch.zeros(vocab_size, vocab_size, vocab_size, dtype=torch.float64)
    for a in range(vocab_size):
        for b in range(vocab_size):
            steps = sampled_from(oracle.logprobs(prompt, [a, b, 0]), temperature=temperature, top_p=top_p)
            joint[a, b] = steps[0, a] * steps[1, b] * steps[2]
    return joint


def chi_square_p(counts: Counter[tuple[int, int, int]], expected: torch.Tensor) -> float:
    """How likely counts as odd as these are, if `expected` [vocabulary]^3 is true; cells under 5 count as one.

    0 for a continuation that cannot come.
    """
    total = counts.total()
    seen = torch.zeros_like(expected)
    for continuation, count in counts.items():
        seen[continuation] = count
    if seen[expected == 0].any():
        return 0.0
    rare = expected * total < 5
    observed = torch.cat((seen[~rare], seen[rare].sum()[None]))
    wanted = torch.cat((expected[~rare], expected[rare].sum()[None])) * total
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    statistic = ((observed - wanted) ** 2 / wanted).sum()
    freedom = torch.tensor((wanted.numel() - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))
