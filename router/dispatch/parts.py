"""What the stages of a prompt work with."""

import asyncio
from collections.abc import Coroutine
from contextvars import Context
from typing import Any

from actors.observability.metrics import Meter
from router.admission.controller import Admission
from router.decision.forecast import Forecaster
from router.decision.guard import Agreements
from router.dispatch.telemetry import ClientMetrics
from router.explain.log import RequestLog
from router.options.request import PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.interface import Pools
from router.pools.prefix_affinity import PrefixKeys


class BackgroundTasks:
    """Work that outlives the request that starts it, so that no client waits for it."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run `work` in a context of its own: Serve cancels the calls of a request that ends, and finds them by
        context."""
        task = asyncio.create_task(work, context=Context())
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task


class Parts:
    """The pools, and what one router knows and counts.

    defaults, decode_defaults: the deployment's options of a request. settings: the endpoint's. admission: None: one
    without limits. clients: the HTTP front sets its own. keys: None: calls prefer no replica.
    """

    def __init__(
        self,
        pools: Pools,
        defaults: PrefillOptions,
        decode_defaults: SpeculationOptions,
        settings: RouterConfig,
        meter: Meter,
        admission: Admission | None = None,
    ) -> None:
        self.pools, self.settings, self.meter = pools, settings, meter
        self.defaults, self.decode_defaults = defaults, decode_defaults
        self.admission = admission or Admission(meter)
        self.forecaster, self.agreements = Forecaster(), Agreements()
        self.keys = PrefixKeys() if settings.affinity else None
        self.clients, self.log = ClientMetrics(), RequestLog()
        self.background = BackgroundTasks()
