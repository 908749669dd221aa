"""The small interface that every target engine implements: vLLM, transformers (the oracle) and a mock."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from kv_transfer.errors import SkimError
from kv_transfer.messages import GenerateOutput, GenerateRequest, ModelInfo


class TargetEngine(Protocol):
    """Prefills kept prompts at their original positions and decodes from position `context_length` on."""

    info: ModelInfo

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """Stream outputs until one is `finished`. Closing the generator, or cancelling its task, aborts the request.

        Raises InvalidRequestError before the first output for a prompt or sampling parameters that it cannot serve
        (never a dead engine), EngineUnavailableError if the engine is dead.
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
) -> TargetEngine:
    """Start an engine. kind: vllm, transformers or mock. options: passed through to that engine.

    Raises ModelError for a model folder that cannot be used, SkimError for an unknown kind.
    """
    options = dict(options or {})
    if kind == "vllm":
        from target_service.vllm_engine import VllmTarget

        return VllmTarget(model, tensor_parallel=tensor_parallel, **options)
    if kind == "transformers":
        from target_service.transformers_engine import TransformersTarget

        return TransformersTarget(model, **options)
    if kind == "mock":
        from target_service.mock_engine import MockTarget

        return MockTarget(model, **options)
    raise SkimError(f"unknown target engine {kind!r}: choose vllm, transformers or mock")
