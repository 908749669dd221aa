"""Whether windows are read sooner without the layers above the deepest head (`speculator_service.vllm_backend.depth`).

Most models run uncompiled then. If that takes longer than all layers of the compiled model, the layers save nothing.
"""

import logging
from typing import Protocol, runtime_checkable
from uuid import uuid4

import numpy as np
import torch

from kv_transfer.arrays import Int32Array
from kv_transfer.options import SelectionOptions
from skim_common.models.needle_prompt import needle_prompts
from speculator_service.engine import ScoreRequest, Scores, SpeculatorEngine

logger = logging.getLogger(__name__)

LEAST_TOKENS = 256
"""Of the window, where no CUDA graph is captured. With vLLM's largest graph, of 512 tokens, it has 1,024."""
ROUNDS = 2
"""After one that warms up."""
NOISE = 1.05
"""Two times of one work differ by so much."""
FAR = 0.2
"""By this share of their sum, the scores of right layers never differ."""


@runtime_checkable
class LayerSkipper(SpeculatorEngine, Protocol):
    """An engine that can read windows without the layers above the deepest head.

    skips_layers: whether it does so, in steps of more than `graph_tokens` tokens. step_tokens: the most of a step.
    """

    skips_layers: bool

    @property
    def graph_tokens(self) -> int: ...

    @property
    def step_tokens(self) -> int: ...


async def check_layers(engine: SpeculatorEngine, model: str) -> None:
    """Read a window as default prompts are read, with all layers and without the upper ones, and let the engine run all
    from now on if they take no longer, or if the scores differ. The log then says so.

    model: the folder or hub name whose tokens the engine reads. Raises SkimError if the engine fails.
    """
    if not isinstance(engine, LayerSkipper) or not engine.info.has_head_profile:
        return
    size = min(max(LEAST_TOKENS, 2 * engine.graph_tokens), engine.info.max_model_len)
    if engine.graph_tokens >= min(engine.step_tokens, size):
        return  # no step is so long
    prompt = np.resize(needle_prompts(model)[0].token_ids, size)
    took: dict[bool, list[float]] = {False: [], True: []}
    found: dict[bool, torch.Tensor] = {}
    for _ in range(1 + ROUNDS):
        for skips in took:
            engine.skips_layers = skips
            scores = await _read(engine, prompt)
            took[skips].append(scores.timings["speculate"])
            found[skips] = scores.importance
    every, lower = (min(times[1:]) for times in took.values())
    problem = ""
    if not (found[True] - found[False]).abs().sum() <= FAR * found[False].sum():
        problem = "its scores differ without the layers above the deepest head"
    elif lower > NOISE * every:
        problem = f"it takes {lower:.1f} ms without the layers above the deepest head, and {every:.1f} ms with them"
    engine.skips_layers = not problem
    if problem:
        logger.warning("speculator %s reads windows with all layers: for one of %d tokens, %s", model, size, problem)


async def _read(engine: SpeculatorEngine, prompt: Int32Array) -> Scores:
    """The scores of a window that is in no prefix cache. The last tokens are the question."""
    name, size = f"skim-start-layers-{uuid4().hex}", int(prompt.size)
    options = SelectionOptions(scoring="heads")
    return await engine.score(
        ScoreRequest(name, prompt, options, cache_salt=name, questions=((size - 16, size),), window=True)
    )
