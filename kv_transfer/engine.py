"""What the engines of both services have in common."""

from collections.abc import Iterable
from typing import Any, Protocol

from prometheus_client import Metric

from skim_common.models.info import ModelInfo


class Engine(Protocol):
    info: ModelInfo

    async def stats(self) -> dict[str, Any]:
        """Counts since the start, by the names of the pool's metrics; {} for an engine that keeps none."""
        return {}

    def metric_families(self) -> Iterable[Metric]:
        """Metrics that the engine records itself, under names of its own."""
        return ()

    async def check_health(self) -> None:
        """Raise EngineUnavailableError if the engine cannot serve."""
        ...

    async def sign_of_life(self) -> None:
        """Return once each process of the engine has answered: between two of its steps, so it may take long."""
        return

    def close(self) -> None:
        """Stop the engine's processes and free its memory; idempotent."""
        ...
