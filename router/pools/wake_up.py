"""Wakes pools: one call at a time waits for each, and a pool that answers takes requests."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

from ray.serve.handle import DeploymentHandle

from router.pools.background_tasks import BackgroundTasks
from router.pools.interface import Admitted


class ColdStart:
    """handles: the pools by name. on_answer: is called with the name of a pool that answered."""

    def __init__(self, handles: Mapping[str, DeploymentHandle], on_answer: Callable[[str], None]) -> None:
        self._handles, self._on_answer = handles, on_answer
        self._background = BackgroundTasks()
        self._calls: dict[tuple[str, ...], asyncio.Task[None]] = {}
        self._wishes: defaultdict[tuple[str, ...], set[Admitted]] = defaultdict(set)

    def wake_up(self, *pools: str, admitted: Admitted | None = None) -> None:
        """Let a call wait for each pool: Serve starts a pool that autoscaling emptied when a call waits.

        admitted: is called if all these pools answer, unless it is forgotten before. Only one such call runs at a time,
        so that it does not count as load. It serves all waiting requests.
        """
        if admitted is not None:
            self._wishes[pools].add(admitted)
        if pools not in self._calls or self._calls[pools].done():
            self._calls[pools] = self._background.start(self._call(pools))

    def forget(self, admitted: Admitted) -> None:
        """The request of `admitted` waits no longer. A call may wait for minutes and must not keep it so long."""
        for wishes in self._wishes.values():
            wishes.discard(admitted)

    async def _call(self, pools: tuple[str, ...]) -> None:
        answered = await self._ask(pools)
        for admitted in self._wishes.pop(pools, ()):
            if answered:
                admitted()

    async def _ask(self, pools: tuple[str, ...]) -> bool:
        return all(await asyncio.gather(*map(self._answers, pools)))

    async def _answers(self, pool: str) -> bool:
        """Whether the pool answers. A call that fails is of no consequence: the next request makes another."""
        try:
            await self._handles[pool].info.remote()
        except Exception:
            return False
        self._on_answer(pool)
        return True
