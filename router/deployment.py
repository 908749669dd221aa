"""The router's Ray Serve deployment: an ASGI app that is built once both pools have answered."""

import asyncio
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fastapi import FastAPI
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from actors.lifecycle.starts import gc_frozen, retried_start
from actors.observability.exposition import Exposition
from actors.observability.logs import log_through_serve
from actors.observability.metrics import ProcessMeter
from actors.observability.tracing import start_traces, stop_traces
from actors.ray_hooks.serve import kept_log_file, replies_of_all
from kv_transfer.options import DecodeOptions
from router.admission.controller import Admission
from router.admission.intake_lock import IntakeLock
from router.dispatch.dispatcher import Dispatcher
from router.explain.log import Part
from router.http.gate import Gate
from router.options.request import PolicyOptions, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from router.pools.availability import TIMEOUT_S, PoolStates, ServeState, watch_pools
from router.pools.serve_pools import ServePools
from skim_common.models.source import local_folder, public_name
from skim_common.proxies import call_directly
from skim_common.versions import check_version

logger = logging.getLogger(__name__)

OTHERS_TIMEOUT_S = 5.0
"""How long a router waits for the replies of the other routers, and before it asks them again."""

OTHERS_ATTEMPTS = 12
"""How often a router that starts asks routers that do not reply whether they serve."""


class RouterDeployment:
    """One router replica. It holds a tokenizer and no weights.

    target: None with `select_only`. model: the target's folder or hub name, else the speculator's. prefill: the prefill
    half of a split target. served_model_names: as clients send them. vllm_options: of `vllm serve`, as in
    `router.vllm_front.app.ServedModel`. selection, decode: the deployment's defaults of the requests' options. traces:
    see `start_traces`.
    """

    def __init__(
        self,
        speculator: DeploymentHandle,
        target: DeploymentHandle | None,
        *,
        prefill: DeploymentHandle | None = None,
        model: str,
        served_model_names: Sequence[str],
        vllm_options: Mapping[str, Any],
        settings: RouterConfig,
        selection: PolicyOptions,
        decode: DecodeOptions,
        traces: Mapping[str, Any] | None = None,
    ) -> None:
        check_version("ray")
        call_directly()
        log_through_serve()
        self._settings = settings
        self._traced = start_traces(traces)
        self._meter, self._states = ProcessMeter(), PoolStates(settings.pool_down_after_s)
        self._intake = IntakeLock()
        self._pools = ServePools(speculator, target, settings.admission_timeout_s, self._states, prefill, self._intake)
        self._admission = Admission(self._meter, max_wait_s=settings.max_wait_s)
        self._dispatcher = Dispatcher(
            self._pools,
            PrefillOptions(
                **selection.model_dump(),
                enabled=settings.speculative_prefill,
                min_prompt_tokens=settings.min_prompt_tokens,
                catch_up=settings.catch_up,
            ),
            SpeculationOptions(**decode.model_dump()),
            settings,
            self._meter,
            self._admission,
        )
        self._model, self._names = model, tuple(served_model_names)
        self._vllm_options = dict(vllm_options)
        self._tell_metrics: Callable[[], Exposition] | None = None

    async def __serve_build_asgi_app__(self) -> Gate:
        self._serve_state = ServeState()
        self._watch = asyncio.create_task(
            watch_pools(self._serve_state, self._serve_state.probes, self._states, self._meter)
        )
        self._app = Gate(self._build_app, self._settings.admission_timeout_s, self._others_serve)
        async with retried_start("router", self._model, self._vllm_options, limit_s=None):
            await self._app.start()
        return self._app

    async def reconfigure(self, sizes: Mapping[str, Any]) -> None:
        """Serve calls it with the deployment's `user_config`, before the first request and when it has changed."""
        self._admission.resize(**sizes)

    async def drain(self) -> bool:
        """As `Gate.drain`; who deletes the application asks for it."""
        self._dispatcher.catch_ups.close()
        return self._app.drain()

    async def serves(self) -> bool:
        """Whether this router has its app; routers that start ask for it."""
        return self._app.problem.text is None

    async def _others_serve(self) -> bool:
        """Whether another router has its app. Routers that do not reply are asked again; in the end they count as
        routers without one, so that a start cannot wait for ever for one that hangs."""
        for _ in range(OTHERS_ATTEMPTS):
            with suppress(RayError, RayServeException, TimeoutError, KeyError, ValueError):
                counts = await asyncio.wait_for(self._serve_state(), TIMEOUT_S)
                if not counts[serve.get_replica_context().deployment].running:
                    return False
                replies = await self._broadcast("serves")
                if True in replies or all(reply is False for reply in replies):
                    return True in replies
            await asyncio.sleep(OTHERS_TIMEOUT_S)
        return False

    async def problem(self) -> tuple[str | None, bool]:
        """Why this replica does not serve yet, and whether a person must repair it; (None, False) once it serves."""
        problem = self._app.problem if self._app.problem.text else self._pools.problem
        return problem.text, problem.failed

    async def _build_app(self) -> FastAPI:
        # Both run in threads: meanwhile the replica answers requests, and the pools start.
        files = asyncio.to_thread(local_folder, self._model, weights=False)
        _, _, folder = await asyncio.gather(self._pools.connect(), asyncio.to_thread(_load_vllm), files)
        # The first prompt must not come before the next look of the watch.
        self._states.failed_probes = await self._serve_state.probes()
        from router.vllm_front.app import ServedModel, build_openai_app
        from router.vllm_front.metrics import DeploymentMetrics

        with gc_frozen():
            max_len = self._pools.target.max_model_len
            served = ServedModel(folder, public_name(self._model), self._names, max_len, self._vllm_options)
            app = await build_openai_app(self._dispatcher, served, self._intake)
        self._dispatcher.log.add_routes(app, self._ask_other_routers)
        self._tell_metrics = app.state.metrics.exposition
        DeploymentMetrics(self._metrics_of_all).add_route(app)
        return app

    async def metrics(self) -> Exposition | None:
        """What this router counts, for the router that is asked for `/metrics`. None before it has its app."""
        return None if self._tell_metrics is None else await asyncio.to_thread(self._tell_metrics)

    async def _metrics_of_all(self) -> list[Exposition]:
        pools = self._pools.ask_all("metrics", self._names[0], timeout_s=OTHERS_TIMEOUT_S)
        groups = await asyncio.gather(self._broadcast("metrics"), *pools, return_exceptions=True)
        # Its own, too: Serve may not tell yet that this router runs.
        replies = [reply for group in groups if isinstance(group, list) for reply in group] + [await self.metrics()]
        return [reply for reply in replies if isinstance(reply, Exposition)]

    async def held(self, part: Part, request_id: str, key: str = "") -> str | None:
        """As `RequestLog.held` of this router; other routers ask."""
        return await self._dispatcher.log.held(part, request_id, key)

    async def _ask_other_routers(self, part: Part, request_id: str, key: str) -> str | None:
        """As `RequestLog.held` of the other routers. One that dies or does not answer in time has no entry."""
        try:
            replies = await self._broadcast("held", part, request_id, key)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.warning("the other routers did not answer: %s", type(error).__name__)
            return None
        return next((reply for reply in replies if isinstance(reply, str)), None)

    async def _broadcast(self, method: str, *args: str) -> list[Any]:
        here = serve.get_replica_context()
        # In a thread: the first call waits for Serve's controller.
        routers = await asyncio.to_thread(serve.get_deployment_handle, here.deployment, here.app_name)
        return await replies_of_all(routers, method, *args, timeout_s=OTHERS_TIMEOUT_S)

    def __del__(self) -> None:
        if getattr(self, "_traced", False):
            stop_traces()


def _load_vllm() -> None:
    """Import vLLM's app, which takes seconds and which the process that deploys does not need."""
    # A router runs no model. Without a GPU, vLLM's CUDA build finds no platform and cannot even read a model's config.
    os.environ.setdefault("VLLM_TARGET_DEVICE", "cpu")
    with gc_frozen(), kept_log_file():
        import router.vllm_front.app  # noqa: F401


def router_ingress() -> type:
    """The class that Serve deploys as the application's ingress."""
    return serve.ingress()(RouterDeployment)
