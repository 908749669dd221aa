"""How a router asks the other routers of its deployment: for an entry of the explain view, and whether they serve."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from ray import serve
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import DeploymentUnavailableError
from starlette.applications import Starlette

from router import deployment
from router.deployment import RouterDeployment
from router.explain.log import Entry, RequestLog
from router.http.gate import Gate
from router.options.settings import RouterConfig
from router.pools.availability import Replicas
from skim_common.errors import ModelError, SkimError
from tests.unit.router.serve_handles import FOREVER, play


class Reply:
    """Stands in for ReplicaResult."""

    def __init__(self, reply):
        self._reply = reply

    async def get_async(self):
        return await play(self._reply)


@pytest.fixture
def ask(monkeypatch):
    """Ask a router whose broadcast gives `replies`, or raises. The calls that it made are in `ask.calls`."""
    calls = []
    monkeypatch.setattr(deployment, "OTHERS_TIMEOUT_S", 0.05)

    async def ask(replies, what="selection"):
        def broadcast(method, what, request_id, key):
            async def results():
                if isinstance(replies, Exception):
                    raise replies
                return list(map(Reply, replies))

            calls.append((method, what, request_id, key))
            return SimpleNamespace(_fetch_replica_results_async=results)

        handles = {("router", "skim"): SimpleNamespace(broadcast=broadcast)}
        monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(deployment="router", app_name="skim"))
        monkeypatch.setattr(serve, "get_deployment_handle", lambda name, app: handles[name, app])
        return await RouterDeployment._ask_other_routers(object.__new__(RouterDeployment), what, "r1", "team")

    ask.calls = calls
    return ask


async def test_the_entry_of_any_router_is_found(ask):
    assert await ask([FOREVER, None, ActorDiedError(), '{"kept_tokens": 1}']) == '{"kept_tokens": 1}'
    assert await ask(['{"headers": {}}', None], "report") == '{"headers": {}}'
    assert ask.calls == [("held", "selection", "r1", "team"), ("held", "report", "r1", "team")]


async def test_a_router_gives_what_it_holds():
    router = object.__new__(RouterDeployment)
    router._dispatcher = SimpleNamespace(log=RequestLog())
    router._dispatcher.log.add_report("r1", {"a": "b"}, "team")
    router._dispatcher.log.add("r2", Entry(7), "team")
    assert json.loads(await router.held("report", "r1", "team"))["headers"] == {"a": "b"}
    assert json.loads(await router.held("selection", "r2", "team"))["prompt_tokens"] == 7
    assert await router.held("report", "r2", "team") is await router.held("selection", "r1", "team") is None
    assert await router.held("report", "r1") is None


@pytest.mark.parametrize(
    "replies", [[], [None], [ActorDiedError()], ActorDiedError(), TimeoutError(), DeploymentUnavailableError(None)]
)
async def test_routers_that_are_gone_have_none(ask, replies):
    assert await ask(replies) is None


@pytest.fixture
def others_serve(monkeypatch):
    """Ask a starting router whether others serve. Each attempt takes the next of `attempts`, the last one for ever: how
    many routers run, or what asking Serve raises, or "hangs", and what a broadcast to them gives or raises.
    """

    async def ask(*attempts):
        starting, left = object.__new__(RouterDeployment), list(attempts)

        async def state():
            running = left[0][0]
            if running == "hangs":
                left.pop(0)
                await asyncio.Event().wait()
            if isinstance(running, Exception):
                left.pop(0)
                raise running
            return {"router": Replicas(configured=2, running=running), "target": Replicas(configured=1, running=1)}

        async def broadcast(method):
            assert method == "serves"
            replies = (left.pop(0) if len(left) > 1 else left[0])[1]
            if isinstance(replies, Exception):
                raise replies
            return replies

        starting._serve_state, starting._broadcast = state, broadcast
        return await starting._others_serve()

    monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(deployment="router", app_name="skim"))
    monkeypatch.setattr(deployment, "OTHERS_TIMEOUT_S", 0.0)
    monkeypatch.setattr(deployment, "TIMEOUT_S", 0.01)
    return ask


@pytest.mark.parametrize(
    ("attempts", "serve_now"),
    [
        ([(0, None)], False),
        ([(1, [True])], True),
        ([(2, [False, True])], True),
        ([(2, [False, False])], False),
        ([(2, [ActorDiedError(), True])], True),
        ([(1, [ActorDiedError()]), (1, [True])], True),
        ([(1, [ActorDiedError()]), (0, None)], False),
        ([(2, TimeoutError()), (2, DeploymentUnavailableError(None)), (2, [True, True])], True),
        ([(ActorDiedError(), None), (1, [True])], True),
        ([("hangs", None), (1, [True])], True),
        ([(1, TimeoutError())], False),
    ],
)
async def test_others_serve_if_one_of_them_has_its_app(others_serve, attempts, serve_now):
    """Who does not reply is asked again, and in the end counts as a router without an app."""
    assert await others_serve(*attempts) is serve_now


async def test_a_router_serves_once_it_has_its_app():
    async def build():
        return Starlette()

    router = object.__new__(RouterDeployment)
    router._app = Gate(build, 3600.0, router.serves)
    assert not await router.serves()
    await router._app.start()
    assert await router.serves()


@pytest.mark.parametrize("there", [True, False])
async def test_serve_does_not_count_a_router_without_an_app_beside_one_with_an_app(monkeypatch, there):
    async def build():
        raise ModelError("two tokenizers")

    async def others_serve():
        return there

    async def nothing(*_):
        pass

    monkeypatch.setattr(deployment, "ServeState", lambda: SimpleNamespace(probes=None))
    monkeypatch.setattr(deployment, "watch_pools", nothing)
    router = object.__new__(RouterDeployment)
    router._model, router._settings = "model", RouterConfig(admission_timeout_s=3600.0)
    router._states = router._meter = None
    router._vllm_options = {}
    router._build_app, router._others_serve = build, others_serve
    if there:
        with pytest.raises(SkimError, match=r"^two tokenizers$"):
            await router.__serve_build_asgi_app__()
        return
    await router.__serve_build_asgi_app__()
    assert await router.problem() == ("two tokenizers", True)
    await router._app._end()
