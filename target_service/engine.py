"""The interface of every target engine, and the start of one by name."""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from kv_transfer.engine import Engine
from kv_transfer.messages import GenerateOutput, GenerateRequest
from skim_common.engine_options import named_engine


class TargetEngine(Engine, Protocol):
    """Prefills kept prompts at their original positions and decodes from position `context_length`."""

    async def prepare(self) -> None:
        """Load what requests may name, before the first of them; the actor awaits it at its start. Raises SkimError."""
        return

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """Stream outputs until one is `finished`. Closing the generator, or cancelling its task, aborts the request.

        Raises InvalidRequestError before the first output if it cannot serve the prompt or the sampling parameters; the
        engine survives. Raises EngineUnavailableError if the engine is dead.
        """
        ...


NAMED = {
    "vllm": "target_service.vllm_backend.engine:VllmTarget",
    "mock": "benchmarks.mock_engines.target:MockTarget",
}


def create_engine(
    kind: str, model: str, *, tensor_parallel: int = 1, options: Mapping[str, Any] | None = None
) -> TargetEngine:
    """Start the engine `kind`, as `named_engine`. Raises ModelError for a model folder that cannot be used."""
    engine: TargetEngine = named_engine(kind, NAMED, TargetEngine, model, tensor_parallel, options or {})
    return engine
