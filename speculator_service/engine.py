"""The small interface that every speculator engine implements: vLLM, transformers (the oracle) and a mock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from kv_transfer.errors import SkimError
from kv_transfer.messages import Int32Array, ModelInfo, SelectionOptions


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """One prompt, read and scored.

    importance: float32 [M] on CPU. look_ahead_tokens: the greedily decoded tokens, at most `look_ahead`, an EOS
    included and nothing after it. timings: milliseconds by part (queue, speculate).
    """

    importance: torch.Tensor
    look_ahead_tokens: list[int]
    timings: Mapping[str, float] = field(default_factory=dict)


class SpeculatorEngine(Protocol):
    """Reads prompts and scores their tokens. Concurrent calls are batched by the engine.

    Cancelling the task that awaits `score` aborts the request in the engine.
    """

    info: ModelInfo

    async def score(self, request_id: str, token_ids: Int32Array, options: SelectionOptions) -> Scores:
        """Prefill `token_ids` [M], decode `options.look_ahead` tokens greedily, score the M prompt tokens.

        Raises InvalidRequestError if M + look_ahead exceeds `info.max_model_len`, EngineUnavailableError if the
        engine is dead.
        """
        ...

    async def check_health(self) -> None:
        """Raise EngineUnavailableError if the engine cannot serve."""
        ...

    def close(self) -> None:
        """Stop the engine's processes and free its memory; idempotent."""
        ...


def create_engine(
    kind: str, model: str, *, tensor_parallel: int = 1, options: Mapping[str, Any] | None = None
) -> SpeculatorEngine:
    """Start an engine. kind: vllm, transformers or mock. options: passed through to that engine.

    Raises ModelError for a model folder that cannot be used, SkimError for an unknown kind.
    """
    options = dict(options or {})
    if kind == "vllm":
        from speculator_service.vllm_engine import VllmSpeculator

        return VllmSpeculator(model, tensor_parallel=tensor_parallel, **options)
    if kind == "transformers":
        from speculator_service.transformers_engine import TransformersSpeculator

        return TransformersSpeculator(model, **options)
    if kind == "mock":
        from speculator_service.mock_engine import MockSpeculator

        return MockSpeculator(model, **options)
    raise SkimError(f"unknown speculator engine {kind!r}: choose vllm, transformers or mock")
