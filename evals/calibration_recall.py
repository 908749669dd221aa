"""Which way of scoring finds the evidence: chunk recall of several ways, without answers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cluster.in_process.async_pair import AsyncPair
from evals.calibration_prompts import CalibrationPrompt
from kv_transfer.messages import Float32Array
from kv_transfer.options import SelectionOptions
from kv_transfer.spans import mask_of
from speculator_service.scoring.selection import select

RATES = (0.05, 0.1, 0.2)
JUDGED = 0.1
"""The keep rate at which the ways are compared: there they differ most, and it is the default `min_keep`."""

LEXICAL = "lexical"

_QUESTION = {"selector": "speculator", "score_queries": "question"}

WAYS: dict[str, dict[str, Any]] = {
    "look-ahead, all layers": {
        "selector": "speculator",
        "score_queries": "look_ahead",
        "layers": "all",
        "aggregation": "max",
    },
    "question, all layers": {**_QUESTION, "layers": "all", "aggregation": "max"},
    "question, last four layers": {**_QUESTION, "layers": "last4", "aggregation": "max"},
    "question, mean over layers": {**_QUESTION, "layers": "all", "aggregation": "head_max_layer_mean"},
    LEXICAL: {"selector": "lexical"},
}
"""Ways of scoring that are compared, as selection options. The first is the paper's; the last needs no speculator."""

Recall = dict[str, dict[str, list[float]]]
"""By way and keep rate (as text), the recall of each prompt."""


async def importance_of(pair: AsyncPair, prompt: CalibrationPrompt, options: SelectionOptions) -> Float32Array:
    """The prompt's scores, float32 [M]."""
    fresh = options.model_copy(update={"reuse": "off"})
    selection = await pair.select(prompt.prompt, fresh, return_importance=True)
    assert selection.importance is not None
    return selection.importance


def recalls(prompt: CalibrationPrompt, importance: Float32Array, options: SelectionOptions) -> dict[str, float]:
    """By keep rate, the share of the evidence's tokens that are kept."""
    evidence = mask_of(prompt.evidence, importance.size)
    found = {}
    for rate in RATES:
        fixed = options.model_copy(update={"keep_rate": rate, "coverage": None})
        positions, _ = select(torch.from_numpy(importance), fixed, prompt.prompt.protected.tolist())
        found[str(rate)] = float(evidence[positions.numpy()].sum() / evidence.sum())
    return found


def best_way(recall: Recall, allowed: Sequence[str]) -> str:
    """The way with the highest mean recall at JUDGED; of equal ones, the highest at the lowest rate, then the first."""

    def figures(way: str) -> tuple[float, ...]:
        return tuple(float(np.mean(recall[way][str(rate)])) for rate in (JUDGED, RATES[0], RATES[-1]))

    return max(allowed, key=figures)


def beside_lexical(recall: Mapping[str, Mapping[str, Sequence[float]]], way: str, seed: int = 0) -> str:
    """One sentence: whether the speculator with this way of scoring finds more of the evidence than BM25.

    The interval is a paired bootstrap over the prompts (95 %).
    """
    ours, lexical = (np.array(recall[name][str(JUDGED)]) for name in (way, LEXICAL))
    rows = np.random.default_rng(seed).integers(0, ours.size, (2000, ours.size))
    low, high = np.quantile((ours - lexical)[rows].mean(1), [0.025, 0.975])
    figures = (
        f"{100 * ours.mean():.0f} % of the evidence at keep rate {JUDGED:g}, BM25 {100 * lexical.mean():.0f} % "
        f"(difference {100 * low:+.0f} to {100 * high:+.0f} points, {ours.size} prompts)"
    )
    if low > 0:
        return f"This speculator beats lexical selection: it finds {figures}."
    if high < 0:
        return f"This speculator is worse than lexical selection: it finds {figures}; set selection.selector: lexical."
    return f"This speculator is not clearly better than lexical selection: it finds {figures}."
