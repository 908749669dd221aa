"""The small interface that every target engine implements: vLLM, transformers (the oracle) and a mock."""

from collections.abc import AsyncGenerator
from typing import Any, Protocol

from kv_transfer.messages import GenerateOutput, GenerateRequest
from skim_common.models.info import ModelInfo


class TargetEngine(Protocol):
    """Prefills kept prompts at their original positions and decodes from position `context_length`."""

    info: ModelInfo

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """Stream outputs until one is `finished`. Closing the generator, or cancelling its task, aborts the request.

        Raises InvalidRequestError before the first output if it cannot serve the prompt or the sampling parameters; the
        engine survives. Raises EngineUnavailableError if the engine is dead.
        """
        ...

    async def stats(self) -> dict[str, Any]:
        """Counts since the start, by the names of the target's metrics; {} for an engine that keeps none."""
        return {}

    async def check_health(self) -> None:
        """Raise EngineUnavailableError if the engine cannot serve."""
        ...

    async def sign_of_life(self) -> None:
        """Return once each process of the engine has answered: between two of its steps, so it may take long.

        An engine within this process has nothing to say: it is as alive as its caller.
        """
        return

    def close(self) -> None:
        """Stop the engine's processes and free its memory; idempotent."""
        ...
