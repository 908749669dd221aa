"""Runs the lower layers of the model only, in a step whose requests need no more.

A window is scored by heads, and it decodes no token. So the layers above the deepest of these heads would run for
nothing. vLLM's models loop over the layers from `start_layer` to `end_layer`, which pipeline parallelism sets (for
example vllm.model_executor.models.llama, `LlamaModel.forward`). A smaller `end_layer` ends the loop. A compiled model
has its loop unrolled, so such a step runs it uncompiled. A step that fits a captured CUDA graph runs all layers,
because there the graph saves more than the layers cost. Whether a longer one is sooner, each replica finds out at its
start (`speculator_service.start.layers`).

The KV of the upper layers stays unwritten. So no other request has the cache salt of a window (`engine_salt`).

Run on CPU, eager and compiled, and eager on an H200.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from vllm.config import CompilationConfig

from skim_common.symbols import Hook
from speculator_service.vllm_backend.capture.scored_requests import Computed

HOOK = Hook(
    what="fewer layers for windows",
    how=(
        "vLLM: for a step of windows alone, `end_layer` of the model's loop over its layers is lowered, and"
        " `do_not_compile` set"
    ),
    until="vLLM can end a forward at a layer",
)


def depth_of(computed: Sequence[Computed], requests: int) -> int | None:
    """The number of layers that a step needs; None for all. computed: its scored parts. requests: all of its requests.

    Parts with the option `depth` need so many layers. All other requests need every layer.
    """
    depths = [part.request.options.get("depth") for part in computed]
    known = [depth for depth in depths if depth is not None]
    return max(known) if known and len(known) == requests else None


class LayerLoop:
    """The loop over the layers of one model."""

    def __init__(self, model: torch.nn.Module, config: CompilationConfig) -> None:
        self._loops: list[Any] = [module for module in model.modules() if hasattr(module, "end_layer")]
        self._captured = config.max_cudagraph_capture_size or 0

    @contextmanager
    def up_to(self, depth: int | None, tokens: int) -> Iterator[None]:
        """The model runs `depth` layers meanwhile. None: all. tokens: those of the step."""
        if depth is None or tokens <= self._captured or len(self._loops) != 1 or depth >= self._loops[0].end_layer:
            yield
            return
        [loop] = self._loops
        end, compiled = loop.end_layer, not getattr(loop, "do_not_compile", True)
        loop.end_layer = depth
        if compiled:
            loop.do_not_compile = True
        try:
            yield
        finally:
            loop.end_layer = end
            if compiled:
                loop.do_not_compile = False
