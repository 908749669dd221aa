"""Explanations with text, without a model: tokens of one character or of a few words, scores from a seed."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from cluster.explain.page import PromptText
from kv_transfer.messages import KeptPrompt, Selection
from kv_transfer.options import SelectionOptions
from router.explain.explained import Explained
from router.prompt.rendered import MessageSpan
from speculator_service.selection.select import select
from speculator_service.selection.units import unit_means
from tests.unit.kv_transfer.layouts import layout_of

WORDS = ("the", "router", "keeps", "what", "matters", "and", "drops", "a", "long", "rest", "\n\n", "of", "prompts,")


def of_text(text: str, **fields: Any) -> tuple[dict[str, Any], PromptText]:
    """Each character is a token."""
    return explained(PromptText(text, np.arange(len(text) + 1), ()), **fields)


def of_tokens(count: int, **fields: Any) -> tuple[dict[str, Any], PromptText]:
    """A chat of three messages with `count` tokens, each a word."""
    rng = np.random.default_rng(0)
    parts = [f"{WORDS[i]} " for i in rng.integers(0, len(WORDS), count)]
    edges = [2, count // 2, count // 2 + 60, count]
    roles = ("user", "assistant", "user")
    messages = [MessageSpan(*one) for one in zip(roles, edges, edges[1:], strict=False)]
    return explained(PromptText("".join(parts), np.cumsum([0, *map(len, parts)]), messages), **fields)


def explained(
    prompt: PromptText, *, later_turn: bool = False, protected: Any = (), units: Any = (), **options: Any
) -> tuple[dict[str, Any], PromptText]:
    """later_turn: the first 60 % of the prompt were kept for an earlier one, but for late units."""
    size = prompt.cuts.size - 1
    rng = np.random.default_rng(1)
    importance = rng.gamma(0.3, 0.01, size).astype(np.float32)
    for place in rng.integers(0, size, 1 + size // 900):
        importance[place : place + 60] += rng.gamma(2.0, 0.05)
    chosen = SelectionOptions(**options)
    layout = layout_of(protected, units=units)
    kept, share = select(importance, chosen, layout)
    positions, reused = kept.astype(np.int32), 0
    if later_turn:
        old, new = positions[positions < 0.6 * size], positions[positions >= 0.6 * size]
        late = old[(old > 0.3 * size) & (old < 0.36 * size)]
        standing = np.setdiff1d(old, late)
        positions, reused = np.concatenate([standing, late, new]).astype(np.int32), standing.size
    scores = unit_means(importance, layout.unit_starts(size, chosen)).astype(np.float32)
    selection = Selection(
        KeptPrompt(positions, positions, size), share, None, {"speculate": 83.2, "select": 1.4}, reused, 0, scores
    )
    return Explained(selection, chosen, layout, selection.timings).as_json(), prompt


def counted(explanation: dict[str, Any]) -> SimpleNamespace:
    """The tokens of each reason, and of all that was dropped."""
    tokens: dict[str, int] = {}
    for span in explanation["spans"]:
        tokens[span["reason"]] = tokens.get(span["reason"], 0) + span["end"] - span["start"]
    return SimpleNamespace(by_reason=tokens, dropped=explanation["prompt_tokens"] - sum(tokens.values()))
