"""The explain view: what was kept of a request's prompt, for `GET /v1/requests/{id}/selection`.

It holds numbers and no text, and only for the latest requests of this router replica.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.spans import segments_of, spans_of
from router.migration import Migration
from router.options import PrefillOptions


def explanation(
    selection: Selection, options: PrefillOptions, protected_spans: np.ndarray, timings: Mapping[str, float]
) -> dict[str, Any]:
    """One selection as JSON values. Spans are half-open ranges of token positions in the original prompt.

    kept_spans are sorted. reused_spans, late_spans and new_spans divide them: what an earlier kept prompt supplied,
    what was appended to it from older text, and the rest. segments are the runs of kept tokens in the order in which
    the target reads them; None if that is the order of kept_spans.
    cached_tokens: prompt tokens that the speculator found in its prefix cache. timings: milliseconds by part, until the
    selection was back at the router.
    """
    kept: KeptPrompt = selection.kept
    reused = np.arange(kept.positions.size) < selection.reused_tokens

    def spans(tokens: npt.NDArray[np.bool_] | slice) -> list[list[int]]:
        mask = np.zeros(kept.context_length, bool)
        mask[kept.positions[tokens]] = True
        return spans_of(mask).tolist()

    return {
        "prompt_tokens": kept.context_length,
        "kept_tokens": int(kept.token_ids.size),
        "reused_tokens": selection.reused_tokens,
        "cached_tokens": selection.cached_tokens,
        "keep_rate": kept.token_ids.size / kept.context_length,
        "coverage": selection.coverage,
        "kept_spans": spans(slice(None)),
        "reused_spans": spans(reused),
        "late_spans": spans(selection.late),
        "new_spans": spans(~reused & ~selection.late),
        "segments": None if kept.is_ascending else segments_of(kept.positions).tolist(),
        "protected_spans": protected_spans.tolist(),
        "look_ahead_tokens": kept.look_ahead_tokens.tolist(),
        "options": options.selection.model_dump(),
        "timings_ms": dict(timings),
    }


class SelectionLog:
    """The latest explanations by request id; the oldest are removed first."""

    def __init__(self, capacity: int = 1024) -> None:
        self._entries: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._capacity = capacity

    def add(self, request_id: str, entry: dict[str, Any]) -> None:
        self._entries[request_id] = entry
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def note_migration(self, request_id: str, prompt_tokens: int, migration: Migration) -> None:
        """Add to the request's entry; a dense request gets one now."""
        if request_id not in self._entries:
            self.add(request_id, {"prompt_tokens": prompt_tokens, "kept_tokens": prompt_tokens})
        self._entries[request_id].setdefault("migrations", []).append(asdict(migration))

    def get(self, request_id: str) -> dict[str, Any] | None:
        """Look up by the id in the response body. vLLM appends a prompt's number: `-0` (completions) or `_0`."""
        names = (request_id, f"{request_id}-0", f"{request_id}_0")
        return next((self._entries[name] for name in names if name in self._entries), None)
