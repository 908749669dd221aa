"""Copies queries out of vLLM's attention layers while the model runs.

Each layer's `impl.forward` is wrapped on the instance after the weights are loaded. There, every attention backend has
the queries after QK norm and rotary embedding, also under torch.compile: the call is inside an opaque operator. In an
MLA layer `forward_impl` is wrapped instead. A query that was not captured is NaN, never an old value.

The replay of a FULL CUDA graph runs no Python. A step that captures gets a PIECEWISE graph, in which attention runs in
Python (`piecewise_while`). All other steps keep vLLM's choice: FULL for steps that decode one token per request.

Run on CPU (eager and compiled, TP 1 and 2), and on one H200 (docs/gpu.md). Not run: queries in FP8, which exist with an
FP8 cache in FlashAttention and FlashInfer only.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention, ChunkedLocalAttention, MLAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.model_executor.models.utils import extract_layer_index

from skim_common.errors import ModelError
from speculator_service.scoring.importance import AttentionFormula
from speculator_service.vllm_backend.keys import PLAIN_CACHES, STORED_FP8, key_scale

ScoredLayer: TypeAlias = Attention | MLAAttention

_log = logging.getLogger(__name__)


def scorable_layers(config: VllmConfig) -> list[ScoredLayer]:
    """The layers that attend to the whole prompt, in order. The log names them if there are others.

    Raises ModelError if there is none, or if one of the layers cannot be scored.
    """
    layers = {
        name: layer
        for name, layer in config.compilation_config.static_forward_context.items()
        if isinstance(layer, AttentionLayerBase)
    }
    partial = {reason for layer in layers.values() if (reason := _why_partial(layer))}
    whole = {name: layer for name, layer in layers.items() if not _why_partial(layer)}
    reasons = {reason for layer in whole.values() if (reason := _why_not(layer))}
    shapes = {(layer.num_heads, layer.head_size) for layer in whole.values() if isinstance(layer, ScoredLayer)}
    if len(shapes) > 1:
        reasons.add("layers of different shapes")
    if not whole:
        reasons = {f"only {reason}" for reason in partial} or {"no attention"}
    model = config.model_config.model
    if reasons:
        raise ModelError(
            f"model {model} is not supported yet as a speculator: it has {', '.join(sorted(reasons))}; choose one with"
            " full attention"
        )
    names = sorted(whole, key=extract_layer_index)
    if partial:
        indices = ", ".join(str(extract_layer_index(name)) for name in names)
        others = ", ".join(sorted(partial))
        _log.warning(
            "speculator %s scores prompts by its layers %s (counted from 0); the others have %s", model, indices, others
        )
    return [whole[name] for name in names]


def attention_formula(layer: ScoredLayer) -> AttentionFormula:
    """How this layer makes weights from q and the stored keys. Its sinks are those of this rank's heads."""
    soft_cap = getattr(layer.impl, "logits_soft_cap", None) or 0.0
    return AttentionFormula(layer.impl.scale * key_scale(layer), soft_cap, getattr(layer.impl, "sinks", None))


def _why_partial(layer: AttentionLayerBase) -> str | None:
    """Why the layer's queries do not attend to all keys of the prompt, or have no keys of their own; else None."""
    if isinstance(layer, MambaBase):
        return "linear attention or a state space"
    if isinstance(layer, ChunkedLocalAttention):
        return f"chunked attention ({layer.attention_chunk_size} tokens)"
    if isinstance(layer, ScoredLayer) and layer.sliding_window is not None:
        return f"sliding-window attention ({layer.sliding_window} tokens)"
    if getattr(layer, "kv_sharing_target_layer_name", None):
        return "the keys of another layer"
    return None


def _why_not(layer: AttentionLayerBase) -> str | None:
    if type(layer) not in (Attention, MLAAttention):
        return f"layers of type {type(layer).__name__}"
    if layer.kv_cache_dtype not in (*PLAIN_CACHES, *STORED_FP8):
        return f"a quantised KV cache ({layer.kv_cache_dtype})"
    if layer._k_scale.numel() != 1:
        return "an FP8 KV cache with a scale per head"
    if isinstance(layer, MLAAttention):
        return "sparse attention" if layer.use_sparse else None
    if getattr(layer.impl, "alibi_slopes", None) is not None:
        return "ALiBi"
    if layer.head_size_v != layer.head_size:
        return f"keys of size {layer.head_size} with values of size {layer.head_size_v}"
    return None


class QueryCapture:
    """A static buffer [L, rows, H, D] into which each layer writes the expected rows of its query.

    Call `expect` before the model runs and `collect` after it. missing: [L, H, D], NaN.
    """

    def __init__(self, layers: Sequence[ScoredLayer], rows: int, dtype: torch.dtype, device: torch.device) -> None:
        shape = (len(layers), rows, layers[0].num_heads, captured_size(layers[0]))
        self._buffer = torch.zeros(shape, dtype=dtype, device=device)
        self.missing = torch.full_like(self._buffer[:, 0], torch.nan)
        self._slots = torch.empty(0, dtype=torch.int64, device=device)
        self._rows: torch.Tensor | None = None
        self._ran = [False] * len(layers)
        self._missing = torch.empty(0, dtype=torch.bool, device=device)
        for index, layer in enumerate(layers):
            self._wrap(index, layer)

    def expect(self, slots: Sequence[int]) -> None:
        """Set the queries to capture in the next run of the model, by the KV slot of their token."""
        if not slots and not self._slots.numel():
            return  # most steps only draft, so nothing is captured
        # With pinned memory the copy does not wait for the device (no effect on CPU).
        wanted = torch.tensor(slots, dtype=torch.int64, pin_memory=self._buffer.is_cuda)
        self._slots = wanted.to(self._buffer.device, non_blocking=True)
        self._rows, self._missing = None, self._slots >= 0
        self._ran = [False] * len(self._ran)

    def collect(self) -> torch.Tensor:
        """A copy [L, len(slots), H, D]; NaN where a layer did not see the slot, or did not run.

        Afterwards nothing is expected.
        """
        taken = self._buffer[:, : self._slots.numel()].clone()
        taken.masked_fill_(self._missing[None, :, None, None], torch.nan)
        if left_out := [index for index, ran in enumerate(self._ran) if not ran]:
            taken[left_out] = torch.nan
        self.expect(())
        return taken

    def _wrap(self, index: int, layer: ScoredLayer) -> None:
        # The arguments begin with the layer and the query or, of MLA, with the query.
        latent = isinstance(layer, MLAAttention)
        owner, name, place = (layer, "forward_impl", 0) if latent else (layer.impl, "forward", 1)
        forward = getattr(owner, name)

        def capture(*args: Any, **kwargs: Any) -> Any:
            if self._slots.numel():
                self._take(index, layer, args[place])
            return forward(*args, **kwargs)

        setattr(owner, name, capture)

    def _take(self, index: int, layer: ScoredLayer, query: torch.Tensor) -> None:
        if self._rows is None:
            # All scored layers are in one KV cache group, so they have the same slots and the rows are looked up once.
            found = get_forward_context().slot_mapping[layer.layer_name][None, :] == self._slots[:, None]
            self._rows, self._missing = found.int().argmax(1), ~found.any(1)
        self._ran[index] = True
        taken = self._buffer[index, : self._slots.numel()]
        if query.dtype == taken.dtype:
            torch.index_select(query, 0, self._rows, out=taken)
        else:
            # vLLM has quantised it to FP8 (`Attention.query_quant`).
            values = query.view(torch.uint8).index_select(0, self._rows).view(query.dtype)
            taken.copy_(values.float() * layer._q_scale)


def captured_size(layer: ScoredLayer) -> int:
    """The size of a captured query of one head."""
    return layer.qk_head_dim if isinstance(layer, MLAAttention) else layer.head_size


def piecewise_while(manager: Any, captures: Callable[[], bool]) -> None:
    """Let a CudaGraphManager (vllm.v1.worker.gpu.cudagraph_utils) choose no FULL graph while `captures()` is true. The
    graphs of mixed steps must not be FULL."""
    dispatch = manager.dispatch

    def dispatch_with_capture(
        num_reqs: int,
        num_tokens: int,
        uniform_token_count: int | None,
        num_active_loras: int,
        max_query_len: int | None = None,
    ) -> Any:
        chosen = dispatch(num_reqs, num_tokens, uniform_token_count, num_active_loras, max_query_len)
        if chosen.cg_mode != CUDAGraphMode.FULL or not captures():
            return chosen
        # FULL graphs are for uniform steps only. So vLLM finds the PIECEWISE graph, or none.
        return dispatch(num_reqs, num_tokens, None, num_active_loras, None)

    manager.dispatch = dispatch_with_capture
