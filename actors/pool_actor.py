"""What the deployment classes of both pools share: the settings of a replica, its start, its health and its end."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Literal

from prometheus_client import Metric
from pydantic import BaseModel, ConfigDict, Field
from ray.util.placement_group import PlacementGroup

from actors.lifecycle.starts import gc_frozen, note_failed_probe, retried_start
from actors.lifecycle.watch import EngineWatch
from actors.observability.exposition import Exposition, expose
from actors.observability.logs import log_through_serve
from actors.observability.metrics import pool_families
from actors.observability.tracing import start_traces, stop_traces
from actors.ray_hooks.serve import kept_log_file
from kv_transfer.codec import encode, encode_error
from kv_transfer.engine import Engine
from skim_common.errors import EngineUnavailableError, InvalidRequestError, SkimError
from skim_common.proxies import call_directly
from skim_common.versions import check_version

logger = logging.getLogger(__name__)


class PoolSettings(BaseModel):
    """A replica: its engine with the engine's options, and how it is watched.

    start_probe: what follows if the started engine fails its probe: prompts run `dense`, or the start fails (`refuse`).
    start_timeout_s: see `retried_start`. hung_after_s: see EngineWatch. traces: see `start_traces`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    engine: str
    model: str
    tensor_parallel: int = 1
    options: Mapping[str, Any] = Field(default_factory=dict)
    start_timeout_s: float = math.inf
    hung_after_s: float = math.inf
    start_probe: Literal["dense", "refuse", "off"] = "off"
    traces: Mapping[str, Any] | None = None


class PoolActor:
    """The base of both actors. Their `__init__` is a coroutine, which Serve awaits."""

    pool: ClassVar[str]
    """The part of the names of its metrics."""

    _engine: Engine
    _failed_probe: int | None = None

    @asynccontextmanager
    async def _start(
        self, deployment: str, settings: PoolSettings, group: PlacementGroup | None = None
    ) -> AsyncIterator[None]:
        """Create the engine in this context; then it is watched. Raises SkimError for another version of Ray."""
        check_version("ray")
        call_directly()
        log_through_serve()
        self._traced = start_traces(settings.traces)
        what = (settings.engine, settings.model, settings.tensor_parallel, settings.options)
        async with retried_start(deployment, *what, limit_s=settings.start_timeout_s):
            with gc_frozen(), kept_log_file():
                yield
        self._watch = EngineWatch(self._engine, deployment, group, hung_after_s=settings.hung_after_s)

    async def _probe(self, settings: PoolSettings, find_failure: Callable[[], Awaitable[str | None]]) -> None:
        """Let the engine that has just started find out whether it can be trusted (docs/scaling.md). find_failure: says
        why not, or None. Only vLLM's engine has hooks that may be broken. Raises SkimError."""
        if settings.start_probe == "off" or settings.engine != "vllm":
            return
        failure = await find_failure()
        self._failed_probe = int(failure is not None)
        if failure is None:
            return
        if settings.start_probe == "refuse":
            raise SkimError(f"the start probe has failed: {failure}")
        logger.error("the start probe has failed, so all prompts run dense: %s", failure)
        await note_failed_probe(failure)

    async def stats(self) -> dict[str, Any]:
        """What the engine counts, by the names of the pool's metrics."""
        return await self._engine.stats()

    def engine_metrics(self) -> Iterable[Metric]:
        """What the engine records itself and the endpoint shows."""
        return self._engine.metric_families()

    async def metrics(self, model_name: str) -> Exposition:
        """The metrics of this replica, for the endpoint's `/metrics`. model_name: as clients know the model."""
        probe = {} if self._failed_probe is None else {"failed_probe": self._failed_probe}
        counts = pool_families(self.pool, {**await self.stats(), **probe})
        # In a thread: the text of an engine's metrics takes some 10 ms.
        return await asyncio.to_thread(lambda: expose([*self.engine_metrics(), *counts], model_name))

    async def info(self) -> bytes:
        """This replica's ModelInfo, encoded."""
        return encode(self._engine.info)

    async def check_health(self) -> None:
        """Serve calls this every few seconds."""
        await self._engine.check_health()

    def __del__(self) -> None:
        if getattr(self, "_traced", False):
            stop_traces()
        if watch := getattr(self, "_watch", None):
            watch.stop()
        if engine := getattr(self, "_engine", None):
            engine.close()


def reply_to_failure(error: Exception, pool: str) -> bytes:
    """Encode the error for the caller, who raises it again. The cause of an engine's failure stays in this log.

    The client may see the text of a SkimError, so the engines name no path, host or trace in it.
    """
    explained = isinstance(error, SkimError) and error.__cause__ is None
    if not (isinstance(error, InvalidRequestError) or explained):
        logger.error("the %s engine failed on a request", pool, exc_info=error)
    if isinstance(error, SkimError):
        return encode_error(error)
    return encode_error(
        EngineUnavailableError(f"the {pool} engine failed on this request; its replica's log has the cause")
    )
