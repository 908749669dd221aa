"""What each selector leaves of a prompt. All of them keep as many tokens as the speculator's selection does.

The rules are those of serving: the router decides whether a prompt is compressed at all and what of it is never dropped
(`router.decision`, `router.protection`), for every selector alike, and
`speculator_service.scoring.selection` chooses what the speculator keeps. A baseline keeps the protected tokens too and
fills the rest of that budget with the chunks that it prefers, the last of them in part.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from evals.tasks import Sample
from kv_transfer.errors import SkimError
from kv_transfer.messages import Int32Array, KeptPrompt, SelectionOptions
from router.decision import RequestTraits, decide
from router.options import PrefillOptions
from router.protection import protected_spans
from speculator_service.scoring.selection import select

Scores = npt.NDArray[np.float64]

SPECULATOR, NO_LOOK_AHEAD = "speculator", "look-ahead 0"
RENUMBERED, WRONG_ORIGIN = "renumbered", "wrong origin"
DENSE = "dense"

SELECTORS = {
    SPECULATOR: "what serving does: the speculator's choice at its original positions",
    NO_LOOK_AHEAD: "scored by the queries of the last prompt token alone",
    "random": "random chunks",
    "last window": "the last chunks",
    "first + last": "chunks from both ends",
    RENUMBERED: "the speculator's choice, positions counted anew from 0",
    WRONG_ORIGIN: "the speculator's choice at its original positions, but the answer begins at position len(kept)",
}
"""By name, what each keeps; plain text for the results page."""


@dataclass(frozen=True, slots=True, eq=False)
class Rendered:
    """A prompt as the models see it. token_ids: int32 [M]. protected: int32 [P, 2], half-open, never dropped."""

    token_ids: Int32Array
    protected: Int32Array


def render(sample: Sample, tokenizer: Any, options: PrefillOptions, max_tokens: int) -> Rendered:
    """Through the tokenizer's chat template, as the router does it.

    Raises SkimError if the router would run the prompt dense, so that no selector would have anything to do.
    """
    text = tokenizer.apply_chat_template(sample.messages, add_generation_prompt=True, tokenize=False)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = np.asarray(encoded.input_ids, np.int32)
    protected = protected_spans(ids.size, [], sample.messages, text, encoded.offset_mapping)
    droppable = ids.size - int((protected[:, 1] - protected[:, 0]).sum())
    traits = RequestTraits(prompt_tokens=ids.size, compressible_tokens=droppable)
    decision = decide(traits, options)
    if not decision.speculative:
        raise SkimError(
            f"a {sample.task} prompt of {ids.size} tokens would run dense ({decision.reason}): ask for longer --lengths"
        )
    return Rendered(ids, protected)


def kept_prompts(
    prompt: Rendered, importance: torch.Tensor, without_look_ahead: torch.Tensor, options: SelectionOptions, seed: int
) -> dict[str, KeptPrompt]:
    """What each selector keeps at `options.keep_rate`.

    importance, without_look_ahead: float [M], the speculator's scores with `options.look_ahead` and with none. A wrong
    origin is no matter of the prompt: its entry is the speculator's, and the engine is told.
    """
    chosen, _ = select(importance, options, prompt.protected.tolist())
    kept = chosen.numpy().astype(np.int32)
    size = prompt.token_ids.size
    always = np.zeros(size, bool)
    always[-options.protect_last :] = True
    for start, end in prompt.protected:
        always[start:end] = True

    place = np.arange(size, dtype=np.float64)
    preferences: Mapping[str, Scores] = {
        NO_LOOK_AHEAD: without_look_ahead.double().numpy(),
        "random": np.repeat(np.random.default_rng(seed).random(size), options.chunk_size)[:size],
        "last window": place,
        "first + last": np.abs(place - (size - 1) / 2),
    }
    restored = KeptPrompt(prompt.token_ids[kept], kept, size)
    others = {name: fill(scores, always, kept.size, options.chunk_size) for name, scores in preferences.items()}
    return {
        SPECULATOR: restored,
        **{name: KeptPrompt(prompt.token_ids[at], at, size) for name, at in others.items()},
        RENUMBERED: KeptPrompt.dense(restored.token_ids),
        WRONG_ORIGIN: restored,
    }


def fill(preference: Scores, always: npt.NDArray[np.bool_], budget: int, chunk: int) -> Int32Array:
    """Positions of `budget` tokens, int32, ascending: those of `always`, then chunks by their mean preference.

    preference: float [M]. always: bool [M], at most `budget` true. With the speculator's scores and the size of its
    selection this is that selection.
    """
    size = preference.size
    starts = np.arange(0, size, chunk)
    means = np.add.reduceat(preference, starts) / np.diff(np.append(starts, size))
    by_chunk = np.argsort(-means, kind="stable")
    order = (by_chunk[:, None] * chunk + np.arange(chunk)).ravel()
    order = order[order < size]
    free = order[~always[order]][: budget - int(always.sum())]
    return np.sort(np.concatenate([np.flatnonzero(always), free])).astype(np.int32)
