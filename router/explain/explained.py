"""The explain view's numbers: what was kept of a prompt, with a score and a reason for each kept span."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.arrays import Float32Array, Int32Array, segments_of, spans_of
from kv_transfer.layout import TextLayout
from kv_transfer.messages import Selection
from kv_transfer.options import SelectionOptions

REASONS = {
    "protected": "always kept: template, system prompt, tools, question, first and last tokens, spans of the client",
    "reused": "stands in the kept prompt of an earlier request",
    "appended": "a late unit: earlier text that this question needs, appended before the question",
    "new": "text after the earlier prompt: its answer, a short text, or units with high scores",
    "label": "names kept text: its heading, tag, table header, key or speaker",
    "top": "among the units that rank highest, within the keep rate",
    "coverage": "among the units that rank highest, as many as the wanted coverage takes",
}
"""Why a token is kept, by name. A token has the first reason of this list that holds."""

DROPPED = ""


@dataclass(frozen=True, slots=True, eq=False)
class Explained:
    """A selection and what it was made from. timings: milliseconds by part, until the selection was back at the router.
    decision: `reason`, in one word, and `catch_up`, as in the headers `x-skim-reason` and `x-skim-catch-up`, and
    `placed`, where `selector: auto` looked up the words; None where no router decided.
    """

    selection: Selection
    options: SelectionOptions
    layout: TextLayout
    timings: Mapping[str, float] = field(default_factory=dict)
    decision: Mapping[str, str] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of what grows with the request."""
        kept, scores = self.selection.kept, self.selection.unit_scores
        arrays = (kept.token_ids, kept.positions, *(() if scores is None else (scores,)))
        return sum(array.nbytes for array in arrays) + self.layout.nbytes

    def as_json(self) -> dict[str, Any]:
        """JSON values. Spans are half-open ranges of token positions in the original prompt.

        spans: the kept spans in the order of the text, each with its reason (a name in `REASONS`) and its score, the
        mean of its tokens' unit scores. units: the first token of each unit. unit_scores: the mean importance of
        each unit, kept or not; None (as all scores are) if the speculator sent none. segments: the runs of kept tokens
        in the order in which the target reads them; None if that is the order of kept_spans. cached_tokens: prompt
        tokens that the speculator found in its prefix cache.
        """
        selection, kept = self.selection, self.selection.kept
        starts = self.layout.unit_starts(kept.context_length, self.options)
        scores = selection.unit_scores
        if scores is not None and scores.size != starts.size:
            scores = None  # not those of this prompt's units
        mask = np.zeros(kept.context_length, bool)
        mask[kept.positions] = True
        return {
            "prompt_tokens": kept.context_length,
            "kept_tokens": int(kept.token_ids.size),
            "reused_tokens": selection.reused_tokens,
            "cached_tokens": selection.cached_tokens,
            "keep_rate": kept.token_ids.size / kept.context_length,
            "coverage": selection.coverage,
            "spans": self._spans(starts, scores),
            "units": starts.tolist(),
            "unit_scores": None if scores is None else [_rounded(score) for score in scores.tolist()],
            "kept_spans": spans_of(mask).tolist(),
            "segments": None if kept.is_ascending else segments_of(kept.positions).tolist(),
            "protected_spans": self.layout.protected.tolist(),
            "rate_spans": [list(region) for region in self.layout.regions],
            "look_ahead_tokens": kept.look_ahead_tokens.tolist(),
            "options": self.options.model_dump(),
            "timings_ms": dict(self.timings),
            "decision": None if self.decision is None else dict(self.decision),
        }

    def _spans(self, starts: Int32Array, scores: Float32Array | None) -> list[dict[str, Any]]:
        """The kept spans with reason and score. A span ends where the reason changes."""
        reasons = self.reasons()
        edges = np.flatnonzero(np.r_[True, reasons[1:] != reasons[:-1], True])
        means: list[float | None] = [None] * (edges.size - 1)
        if scores is not None:
            tokens = np.repeat(scores.astype(np.float64), np.diff(starts, append=reasons.size))
            means = list(map(_rounded, np.add.reduceat(tokens, edges[:-1]) / np.diff(edges)))
        return [
            {"start": start, "end": end, "reason": str(reasons[start]), "score": score}
            for (start, end), score in zip(pairwise(edges.tolist()), means, strict=True)
            if reasons[start] != DROPPED
        ]

    def reasons(self) -> npt.NDArray[np.str_]:
        """Why each token of the prompt is kept: names in `REASONS`, `DROPPED` for the others; [M]."""
        selection, options = self.selection, self.options
        positions, size = selection.kept.positions, selection.kept.context_length
        reasons = np.full(size, DROPPED, f"<U{max(map(len, REASONS))}")
        by_score = "top" if options.wanted_coverage is None else "coverage"
        reasons[positions] = "new" if selection.reused_tokens else by_score
        if self.layout.headings.size and options.granularity == "text":
            units = np.searchsorted(self.layout.units, positions, "right") - 1
            taken = np.zeros(self.layout.units.size, bool)
            taken[units] = True
            reasons[positions[self.layout.labels_of(taken)[units]]] = "label"
        reasons[positions[selection.late]] = "appended"
        reasons[positions[: selection.reused_tokens]] = "reused"
        protected = self.layout.fixed(size, options.protect_last)
        reasons[protected & (reasons != DROPPED)] = "protected"
        return reasons


def _rounded(score: float) -> float:
    """With six digits, which is what float32 has."""
    return float(f"{score:.6g}")
