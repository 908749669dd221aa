"""Which way of scoring finds the evidence: chunk recall of several ways, without answers."""

from collections.abc import Mapping, Sequence

import numpy as np

from evals.calibration.prompts import CalibrationPrompt
from evals.results.bootstrap import of_mean
from evals.selection.chunk_recall import LEXICAL, kept_share
from kv_transfer.arrays import Float32Array
from kv_transfer.options import SelectionOptions

RATES = (0.05, 0.1, 0.2)
JUDGED = 0.1
"""The keep rate at which the ways are compared: there they differ most, and it is the default `min_keep`."""

Recall = dict[str, dict[str, list[float]]]
"""By way and keep rate (as text), the recall of each prompt."""


def recalls(prompt: CalibrationPrompt, importance: Float32Array, options: SelectionOptions) -> dict[str, float]:
    """By keep rate, the share of the evidence's tokens that are kept. importance: float32 [M]."""
    fixed = {rate: options.model_copy(update={"keep_rate": rate, "coverage": None}) for rate in RATES}
    return {str(rate): kept_share(prompt.layout, prompt.evidence, importance, fixed[rate]) for rate in RATES}


def best_way(recall: Recall, allowed: Sequence[str]) -> str:
    """The way with the highest mean recall at JUDGED; of equal ones, the highest at the lowest rate, then the first."""

    def figures(way: str) -> tuple[float, ...]:
        return tuple(float(np.mean(recall[way][str(rate)])) for rate in (JUDGED, RATES[0], RATES[-1]))

    return max(allowed, key=figures)


def beside_lexical(recall: Mapping[str, Mapping[str, Sequence[float]]], way: str) -> str:
    """One sentence: whether the speculator with this way of scoring finds more of the evidence than BM25.

    The interval is a paired bootstrap over the prompts.
    """
    ours, lexical = (np.array(recall[name][str(JUDGED)]) for name in (way, LEXICAL))
    _, low, high = of_mean((ours - lexical).tolist())
    figures = (
        f"{100 * ours.mean():.0f} % of the evidence at keep rate {JUDGED:g}, BM25 {100 * lexical.mean():.0f} % "
        f"(difference {100 * low:+.0f} to {100 * high:+.0f} points, {ours.size} prompts)"
    )
    if low > 0:
        return f"This speculator beats lexical selection: it finds {figures}."
    if high < 0:
        return f"This speculator is worse than lexical selection: it finds {figures}; set selection.selector: lexical."
    return f"This speculator is not clearly better than lexical selection: it finds {figures}."
