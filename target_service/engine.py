"""The small interface that every target engine implements: vLLM, and classes that a deployment names."""

from collections.abc import AsyncGenerator
from typing import Protocol

from kv_transfer.engine import Engine
from kv_transfer.messages import GenerateOutput, GenerateRequest


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
