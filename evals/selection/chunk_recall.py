"""Chunk recall: whether a selection keeps all chunks with evidence of the answer. It needs the speculator alone."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evals.selection.evidence import evidence_spans
from evals.selection.prompts import template_messages
from evals.tasks.registry import Sample
from kv_transfer.arrays import Float32Array, mask_of
from kv_transfer.layout import TextLayout
from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from router.decision.choice import PLACED
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.prompts import render as render_prompt
from speculator_service.engine import SpeculatorEngine
from speculator_service.reading import Reading
from speculator_service.selection.select import select
from speculator_service.service import scores_of

LEXICAL, READ = "lexical", "read by auto"

_BY_ATTENTION = {
    "selector": "speculator",
    "scoring": "attention",
    "read": "whole",
    "layers": "last_half",
    "aggregation": "max",
}

WAYS: dict[str, dict[str, Any]] = {
    "look-ahead": _BY_ATTENTION,
    "look-ahead, all layers": {**_BY_ATTENTION, "layers": "all"},
    "look-ahead, last four layers": {**_BY_ATTENTION, "layers": "last4"},
    "look-ahead, mean over layers": {**_BY_ATTENTION, "layers": "all", "aggregation": "head_max_layer_mean"},
    "look-ahead, chunks": {**_BY_ATTENTION, "granularity": "chunk"},
    "heads": {"selector": "speculator", "scoring": "heads", "read": "whole"},
    "heads, windows": {"selector": "speculator", "scoring": "heads", "read": "windows"},
    "heads, windows once": {"selector": "speculator", "scoring": "heads", "read": "windows", "read_again": "off"},
    LEXICAL: {"selector": "lexical"},
}
"""Ways to score a prompt, as selection options. The first is the default of short prompts, *heads, windows* that of
long ones; the second has the paper's layers, and the last needs no speculator. With chunks, BM25 is not in the sum.

READ, in place of a way, says of a prompt whether `selector: auto` has it read: words do not place its question."""

Recall = dict[str, dict[str, dict[float, list[bool]]]]
"""By way, task and keep rate: for each sample, whether all of its evidence was kept."""


async def chunk_recall(
    engine: SpeculatorEngine,
    tokenizer: Any,
    samples: Iterable[Sample],
    ways: Mapping[str, SelectionOptions],
    keep_rates: Sequence[float],
) -> Recall:
    """Score each sample once by each way, and select at each keep rate, with the protected tokens of serving.

    tokenizer: of the token ids that the engine takes. Raises SkimError for a prompt that the engine cannot score.
    """
    found: Recall = {way: {} for way in ways}
    for number, sample in enumerate(samples):
        prompt = render_prompt(template_messages(sample.messages), tokenizer)
        layout, evidence = prompt.layout(PrefillOptions()), evidence_spans(prompt, sample.quiz)
        for way, options in ways.items():
            by_rate = found[way].setdefault(sample.task, {rate: [] for rate in keep_rates})
            if way == READ:
                for read in by_rate.values():
                    read.append(layout.placed < PLACED)
                continue
            importance = await importance_of(engine, f"recall-{number}-{way}", prompt, layout, options)
            for rate in keep_rates:
                asked = options.model_copy(update={"keep_rate": rate})
                by_rate[rate].append(kept_share(layout, evidence, importance, asked) == 1.0)
    return found


async def importance_of(
    engine: SpeculatorEngine, name: str, prompt: RenderedPrompt, layout: TextLayout, options: SelectionOptions
) -> Float32Array:
    """The prompt's scores, float32 [M]. name: the request's id."""
    reading = Reading.of(SelectRequest(name, prompt.token_ids, options, layout), engine.info)
    return (await scores_of(engine, reading)).importance


def kept_tokens(layout: TextLayout, importance: Float32Array, options: SelectionOptions) -> npt.NDArray[np.bool_]:
    """The tokens that a fresh selection keeps, bool [M]."""
    kept = np.zeros(importance.size, bool)
    kept[select(importance, options, layout)[0]] = True
    return kept


def kept_share(
    layout: TextLayout, evidence: Sequence[tuple[int, int]], importance: Float32Array, options: SelectionOptions
) -> float:
    """The share of the tokens in the spans `evidence` that a fresh selection keeps."""
    kept = kept_tokens(layout, importance, options)
    return float(kept[mask_of(evidence, kept.size)].mean())


def mean(recall: Recall, way: str, rate: float) -> float:
    """The share of all samples, over all tasks, whose evidence was kept."""
    kept = [one for by_rate in recall[way].values() for one in by_rate[rate]]
    return sum(kept) / len(kept)
