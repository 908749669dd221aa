"""The selectors: each keeps a part of a prompt, with as many tokens as the speculator's selection.

The rules are those of serving. For all selectors alike, the router decides whether a prompt is compressed and which
tokens are protected (`cluster.in_process.prompts`). `speculator_service.scoring.selection` makes the
speculator's selection. A baseline keeps the protected tokens too, and fills the rest of the budget with the chunks that
it prefers; of the last chunk it may keep a part.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cluster.in_process.prompts import RenderedPrompt
from cluster.in_process.prompts import render as render_prompt
from evals.tasks import Sample
from kv_transfer.errors import SkimError
from kv_transfer.messages import Int32Array, KeptPrompt
from kv_transfer.options import SelectionOptions
from kv_transfer.spans import regions_of
from router.options import PrefillOptions
from speculator_service.scoring.selection import select

Scores = npt.NDArray[np.float64]

SPECULATOR, NO_LOOK_AHEAD = "speculator", "look-ahead 0"
RENUMBERED, WRONG_ORIGIN = "renumbered", "wrong origin"
DENSE = "dense"

SELECTORS = {
    SPECULATOR: "the speculator's selection at its original positions, as in serving",
    NO_LOOK_AHEAD: "as *speculator*, but scored only by the queries of the last prompt token",
    "random": "random chunks",
    "last window": "the last chunks of the prompt",
    "first + last": "chunks from both ends of the prompt",
    RENUMBERED: "as *speculator*, but the kept tokens are numbered from 0",
    WRONG_ORIGIN: "as *speculator*, but the answer starts at position len(kept) instead of the prompt's length",
}
"""What each selector keeps, by name; shown on the results page."""


def render(sample: Sample, tokenizer: Any, options: PrefillOptions) -> RenderedPrompt:
    """Tokenize the sample with the chat template, as the router does.

    Raises SkimError if the router would run the prompt dense, because there would be nothing to select.
    """
    prompt = render_prompt(sample.messages, tokenizer)
    decision = prompt.decide(options)
    if not decision.speculative:
        raise SkimError(
            f"a {sample.task} prompt of {prompt.token_ids.size} tokens would run dense ({decision.reason}): "
            "ask for longer --lengths"
        )
    return prompt


def kept_prompts(
    prompt: RenderedPrompt,
    importance: torch.Tensor,
    without_look_ahead: torch.Tensor,
    options: SelectionOptions,
    seed: int,
) -> dict[str, KeptPrompt]:
    """The kept prompt of each selector at `options.keep_rate`.

    importance, without_look_ahead: float [M], the speculator's scores with `options.look_ahead` and with none. seed: of
    the random chunks. WRONG_ORIGIN has the speculator's kept prompt; the target engine shifts its answer.
    """
    chosen, _ = select(importance, options, prompt.protected.tolist(), regions_of(prompt.rate_spans, prompt.rates))
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
    """The positions of `budget` tokens, int32 and ascending: those in `always`, then chunks by their mean preference.

    preference: float [M]. always: bool [M], true for at most `budget` tokens. With the speculator's scores and the size
    of its selection, the result is that selection.
    """
    size = preference.size
    starts = np.arange(0, size, chunk)
    means = np.add.reduceat(preference, starts) / np.diff(np.append(starts, size))
    by_chunk = np.argsort(-means, kind="stable")
    order = (by_chunk[:, None] * chunk + np.arange(chunk)).ravel()
    order = order[order < size]
    free = order[~always[order]][: budget - int(always.sum())]
    return np.sort(np.concatenate([np.flatnonzero(always), free])).astype(np.int32)
