"""`python -m evals.guard.train`: make the weights of `router.decision.guard` from `wordings.txt`.

Logistic regression over hashed n-grams. An n-gram that one wording alone has gets no weight, and both classes weigh the
same. The same wordings give the same weights.
"""

import random
from collections.abc import Sequence

import numpy as np
import torch

from evals.guard.wordings import HELD_OUT, LATER, TRAINED, Wording, filled, plain
from router.decision.guard import BUCKETS, WEIGHTS, Weights, features

DECAY = 5e-6
"""Of the sum of the squared weights; chosen on `held_out.txt` among 3e-6 to 2e-5."""

ROUNDS = 60
LEAST = 2.5
"""Weights under this many steps of the 8-bit scale are dropped."""

THRESHOLD = 0.25
"""Subtracted from the bias: of `held_out.txt`, at most 3 % of the questions are above it."""


def train(wordings: Sequence[Wording], threshold: float = THRESHOLD) -> tuple[np.ndarray, float, float]:
    """Weights as 8-bit integers, their scale, and the bias."""
    matrix = _matrix(wordings)
    wanted = torch.tensor([wording.whole for wording in wordings], dtype=torch.float32)
    share = torch.where(wanted > 0, 0.5 / wanted.sum(), 0.5 / (1 - wanted).sum())
    weight, bias = _fit(matrix, wanted, share)
    scale = np.abs(weight).max() / 127
    steps = np.rint(np.where(np.abs(weight) < LEAST * scale, 0, weight) / scale).astype(np.int8)
    return steps, float(scale), bias - threshold


def as_weights(steps: np.ndarray, scale: float, bias: float) -> Weights:
    return steps.astype(np.float32) * np.float32(scale), bias


def _matrix(wordings: Sequence[Wording]) -> torch.Tensor:
    """Sparse [wordings, BUCKETS]: how often each has each n-gram, over the root of the number of its n-grams."""
    buckets = [features(wording.text)[0] for wording in wordings]
    sizes = np.array([found.size for found in buckets])
    columns, rows = np.concatenate(buckets), np.repeat(np.arange(sizes.size), sizes)
    numbers = np.array([wording.number for wording in wordings])
    pairs = np.unique(columns * (numbers.max() + 1) + numbers[rows])
    shared = np.bincount(pairs // (numbers.max() + 1), minlength=BUCKETS) > 1
    kept = shared[columns]
    values = (1 / np.sqrt(sizes))[rows[kept]].astype(np.float32)
    where = torch.from_numpy(np.stack([rows[kept], columns[kept]]))
    return torch.sparse_coo_tensor(where, torch.from_numpy(values), (sizes.size, BUCKETS)).coalesce()


def _fit(matrix: torch.Tensor, wanted: torch.Tensor, share: torch.Tensor) -> tuple[np.ndarray, float]:
    forward, back = matrix.to_sparse_csr(), matrix.t().coalesce().to_sparse_csr()
    weight, bias = torch.zeros(BUCKETS, 1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ROUNDS, history_size=10, line_search_fn="strong_wolfe")

    def loss() -> torch.Tensor:
        with torch.no_grad():
            scores = (forward @ weight).squeeze(1) + bias
            error = share * (torch.sigmoid(scores) - wanted)
            weight.grad, bias.grad = back @ error.unsqueeze(1) + 2 * DECAY * weight, error.sum().unsqueeze(0)
            each = torch.nn.functional.binary_cross_entropy_with_logits(scores, wanted, reduction="none")
            return (share * each).sum() + DECAY * (weight**2).sum()

    optimizer.step(loss)
    return weight.detach().squeeze(1).numpy(), float(bias.detach())


if __name__ == "__main__":
    torch.set_num_threads(1)
    held_out = {one.text for path in (HELD_OUT, LATER) for one in plain(path)}
    steps, scale, bias = train([one for one in filled(TRAINED, random.Random(0)) if one.text not in held_out])
    np.savez_compressed(WEIGHTS, weights=steps, scale=np.float32(scale), bias=np.float32(bias))
    print(f"{np.count_nonzero(steps)} weights, {WEIGHTS.stat().st_size} bytes")
