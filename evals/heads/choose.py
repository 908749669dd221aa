"""Which heads of a model are retrieval heads, how many of them to use, and how much their rows and they count.

A head is ranked by the attention mass that it puts on the evidence (QRHead, arXiv 2506.09944, section 3). Without the
mass on the rest of the text: subtracting it ranks heads first that look at no text at all. The candidates are the best
4, 8 and 16 heads, with several weights of the rows, all heads alike or by their mass. The best one
keeps all evidence of most prompts, each judged with heads that the other half of the prompts ranked. A read in windows
ends at the deepest head, so the heads are taken from the fewest layers with which this rule keeps as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
import numpy.typing as npt
import torch

from evals.heads.prompts import EvidencePrompt
from evals.selection.chunk_recall import kept_share
from kv_transfer.options import SelectionOptions
from kv_transfer.spans import mask_of
from speculator_service.scoring.heads import Head

COUNTS = (4, 8, 16)
LAST = (0.0, 0.25, 0.5, 0.75, 1.0)
"""The weight of the last prompt token's row; that of the question's rows is the rest to 1."""
DEPTHS = (1 / 2, 2 / 3, 3 / 4)
"""The lowest layers that the heads may be taken from, as a share of all layers."""
LESS = 0.01
"""Fewer layers may keep all evidence less often by this share of all times."""
KEEP_RATES = (0.05, 0.1, 0.2)
ALONE = SelectionOptions(lexical_weight=0)
"""Serving's selection without BM25 in the sum, which would hide what the heads find."""

Values = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Reading:
    """What every head looks at in one prompt. masses: float32 [2, n, M], rows of the question and of the last token."""

    prompt: EvidencePrompt
    masses: Values

    def found(self) -> Values:
        """float32 [2, n]: each head's mass on the evidence, as far as it may be dropped."""
        size = self.masses.shape[-1]
        protected = mask_of(self.prompt.rendered.protected.tolist(), size)
        return self.masses[..., mask_of(self.prompt.evidence, size) & ~protected].sum(-1)


@dataclass(frozen=True, slots=True)
class Rule:
    """How heads are chosen by readings.

    count: of heads. last: the weight of the last row. even: all heads alike. depth: one of DEPTHS, or 1.
    """

    count: int
    last: float
    even: bool
    depth: float = 1.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """Heads, with the weights of their rows."""

    heads: tuple[Head, ...]
    question: float
    last: float


def ranked(rule: Rule, names: Sequence[tuple[int, int]], readings: Sequence[Reading]) -> Candidate:
    """The heads with the largest mean mass on the evidence. names: (layer, head) of each head."""
    found = np.mean([reading.found() for reading in readings], axis=0)
    worth = (1 - rule.last) * found[0] + rule.last * found[1]
    layers = np.array([layer for layer, _ in names])
    low = np.flatnonzero(layers < rule.depth * (1 + layers.max()))
    best = low[np.argsort(-worth[low], kind="stable")][: rule.count]
    weights = np.ones(len(best)) if rule.even else worth[best] + 1e-4
    heads = tuple(
        Head(layer=names[place][0], head=names[place][1], weight=round(float(weight), 4))
        for place, weight in zip(best, weights, strict=True)
    )
    return Candidate(heads, 1 - rule.last, rule.last)


def importance(candidate: Candidate, names: Sequence[tuple[int, int]], reading: Reading) -> torch.Tensor:
    """The scores that serving gives the prompt with this candidate's profile, float32 [M]."""
    places = [names.index((head.layer, head.head)) for head in candidate.heads]
    weights = np.array([head.weight for head in candidate.heads])
    rows = np.tensordot([candidate.question, candidate.last], reading.masses[:, places], 1)
    return torch.from_numpy((weights / weights.sum()) @ rows).float()


def kept(prompt: EvidencePrompt, scores: torch.Tensor) -> list[float]:
    """The share of the evidence that a selection by these scores keeps, for each of KEEP_RATES."""
    options = [ALONE.model_copy(update={"keep_rate": rate}) for rate in KEEP_RATES]
    return [kept_share(prompt.rendered, prompt.evidence, scores, option) for option in options]


def choose(
    names: Sequence[tuple[int, int]], halves: tuple[Sequence[Reading], Sequence[Reading]]
) -> tuple[Candidate, list[list[float]]]:
    """The candidate of the best rule, ranked by all readings, and what that rule keeps of each prompt (`kept`).

    The best rule keeps all evidence most often; of equals, the one that keeps the larger mean share, then the one with
    fewer heads. It is then tried with fewer layers, the fewest first, which may keep all evidence less often by LESS.
    """
    judged = [_judged(Rule(*each), names, halves) for each in product(COUNTS, LAST, (True, False))]
    often, _, rule, shares = max(judged, key=lambda one: one[:2])
    enough = often - LESS * len(KEEP_RATES) * len(shares)
    for depth in DEPTHS:
        lower = replace(rule, depth=depth)
        found = _judged(lower, names, halves)
        if found[0] >= enough:
            rule, shares = lower, found[3]
            break
    return ranked(rule, names, [*halves[0], *halves[1]]), shares


def _judged(
    rule: Rule, names: Sequence[tuple[int, int]], halves: tuple[Sequence[Reading], Sequence[Reading]]
) -> tuple[int, float, Rule, list[list[float]]]:
    """How often the rule keeps all evidence, the mean share that it keeps, the rule, and its share of each prompt."""
    shares = []
    for ranking, others in (halves, halves[::-1]):
        candidate = ranked(rule, names, ranking)
        shares += [kept(reading.prompt, importance(candidate, names, reading)) for reading in others]
    return all_kept(shares), float(np.mean(shares)), rule, shares


def all_kept(shares: Sequence[Sequence[float]]) -> int:
    """How often all evidence was kept, over all prompts and keep rates."""
    return sum(share == 1.0 for of_prompt in shares for share in of_prompt)
