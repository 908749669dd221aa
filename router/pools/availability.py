"""Which pools are down: configured to have replicas, and without one for longer than a time limit.

No request waits for a pool that is down: the router answers at once with what still works. A pool that autoscaling has
emptied is not down, also while its first replica starts.
"""

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import Context
from typing import NamedTuple

from ray import serve
from ray.serve.handle import DeploymentHandle

from actors.lifecycle.starts import READ_PERIOD_S, failed_probes
from actors.observability.metrics import Meter
from actors.ray_hooks.serve import Controller
from router.pools.interface import Admitted
from skim_common.errors import EngineUnavailableError

logger = logging.getLogger(__name__)

PERIOD_S = READ_PERIOD_S
TIMEOUT_S = 10.0
"""How often Serve's controller is asked, and how long for. While it is away, the last state counts."""
MAX_RETRY_S = 60
"""A client that asks less often would find the pool later than it is back."""


class PoolDownError(EngineUnavailableError):
    """A pool has been without a replica for too long to wait for one. down_s: for how long, which is also the best
    guess for how much longer."""

    def __init__(self, message: str, down_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = min(max(1, math.ceil(down_s)), MAX_RETRY_S)


class Replicas(NamedTuple):
    """The number of replicas that a pool should have, and of those that serve."""

    configured: int
    running: int


class PoolStates:
    """The state of each pool. down_after_s: how long an empty pool counts as about to come back. failed_probes: the
    pools that have failed their start probe (`actors.lifecycle.starts`)."""

    def __init__(self, down_after_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._down_after_s, self._clock = down_after_s, clock
        self._empty_since: dict[str, float] = {}  # infinite for a pool that autoscaling has emptied, until it answers
        self._running: dict[str, int] = {}
        self._waiting: defaultdict[str, set[asyncio.Timeout]] = defaultdict(set)
        self.failed_probes: Mapping[str, str] = {}

    def note(self, pools: Mapping[str, Replicas]) -> None:
        """Take in what Serve reports. Ends the waits for pools that are down now."""
        for pool, replicas in pools.items():
            self._running[pool] = replicas.running
            if replicas.running:
                self.answered(pool)
            elif not replicas.configured:
                self._empty_since[pool] = math.inf
            else:
                self._empty_since.setdefault(pool, self._clock())
        for pool in filter(self.is_down, self._empty_since):
            for wait in self._waiting[pool]:
                if not wait.expired():  # one that ends already cannot be changed
                    wait.reschedule(asyncio.get_running_loop().time())

    def answered(self, pool: str) -> None:
        """The pool answered, so it is up, at once. Serve's next report may say otherwise: the time then begins anew."""
        self._empty_since.pop(pool, None)

    def per_router(self, pool: str) -> float:
        """The replicas of a pool that serve, divided by the routers; a report without one counts as one."""
        return (self._running.get(pool) or 1) / (self._running.get("router") or 1)

    def is_down(self, pool: str) -> bool:
        return self._clock() - self._empty_since.get(pool, math.inf) >= self._down_after_s

    def check(self, pool: str) -> None:
        """Raise PoolDownError if the pool is down."""
        if self.is_down(pool):
            down_s = self._clock() - self._empty_since[pool]
            raise PoolDownError(f"the {pool} pool is down; try again in a moment", down_s)

    @asynccontextmanager
    async def while_up(self, pool: str) -> AsyncIterator[None]:
        """A wait for an answer of the pool. Raises PoolDownError if the pool is down or goes down meanwhile."""
        self.check(pool)
        try:
            async with asyncio.timeout(None) as wait:
                self._waiting[pool].add(wait)
                try:
                    yield
                finally:
                    self._waiting[pool].discard(wait)
        except TimeoutError:
            if wait.expired():
                self.check(pool)
            raise


class ColdStart:
    """Wakes pools. handles: by name. on_answer: is called with the name of a pool that answered."""

    def __init__(self, handles: Mapping[str, DeploymentHandle], on_answer: Callable[[str], None]) -> None:
        self._handles, self._on_answer = handles, on_answer
        self._calls: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._wishes: defaultdict[tuple[str, ...], set[Admitted]] = defaultdict(set)

    def wake_up(self, *pools: str, admitted: Admitted | None = None) -> None:
        """Let one call, for all requests, wait for each pool: Serve then starts a pool that autoscaling emptied.

        admitted: is called if all these pools answer, unless it is forgotten before.
        """
        if admitted is not None:
            self._wishes[pools].add(admitted)
        if pools not in self._calls or self._calls[pools].done():
            # In a context of its own: Serve cancels the calls of a request that ends, and finds them by context.
            self._calls[pools] = asyncio.create_task(self._call(pools), context=Context())

    def forget(self, admitted: Admitted) -> None:
        """The request of `admitted` waits no longer. A call may wait for minutes and must not keep it so long."""
        for wishes in self._wishes.values():
            wishes.discard(admitted)

    async def _call(self, pools: tuple[str, ...]) -> None:
        answered = all(await asyncio.gather(*map(self._answers, pools)))
        for admitted in self._wishes.pop(pools, ()):
            if answered:
                admitted()

    async def _answers(self, pool: str) -> bool:
        """Whether the pool answers. A call that fails is of no consequence: the next request makes another."""
        with suppress(Exception):
            await self._handles[pool].info.remote()
            self._on_answer(pool)
            return True
        return False


async def watch_pools(
    ask: Callable[[], Awaitable[Mapping[str, Replicas]]],
    probes: Callable[[], Awaitable[Mapping[str, str]]],
    states: PoolStates,
    meter: Meter,
) -> None:
    """Note and record every PERIOD_S what `ask` and `probes` report, for ever. Their failures change nothing."""
    pools: Mapping[str, Replicas] = {}
    while True:
        with suppress(Exception):
            async with asyncio.timeout(TIMEOUT_S):
                pools = await ask()
        try:
            states.note(pools)
            for pool, replicas in pools.items():
                for state, count in replicas._asdict().items():
                    meter.record("skim_router_pool_replicas", count, pool=pool, state=state)
        except Exception:
            logger.exception("the state of the pools could not be noted; it is tried again")
        with suppress(Exception):
            states.failed_probes = await probes()
        await asyncio.sleep(PERIOD_S)


class ServeState:
    """Asks Serve's controller for the replicas of this replica's application."""

    def __init__(self) -> None:
        self._app = serve.get_replica_context().app_name
        self._controller = Controller()

    async def __call__(self) -> Mapping[str, Replicas]:
        """The replicas by deployment. Raises RayError or ValueError if there is no controller."""
        return {
            name: Replicas(
                configured=details["target_num_replicas"],
                running=sum(replica["state"] == "RUNNING" for replica in details["replicas"]),
            )
            for name, details in (await self._controller.deployments(self._app)).items()
        }

    async def probes(self) -> Mapping[str, str]:
        """`failed_probes` of the application, read in a thread: it waits for Ray's head."""
        return await asyncio.to_thread(failed_probes, self._app)
