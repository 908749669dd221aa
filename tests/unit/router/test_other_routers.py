"""How a router asks the other routers of its deployment for an entry of the explain view."""

from types import SimpleNamespace

import pytest
from ray import serve
from ray.exceptions import ActorDiedError
from ray.serve.exceptions import DeploymentUnavailableError

from router import deployment
from router.deployment import RouterDeployment


@pytest.fixture
def ask(monkeypatch):
    """Ask a router whose broadcast gives `replies`, or raises. The calls that it made are in `ask.calls`."""
    calls = []

    async def ask(replies, method="held_selection"):
        def broadcast(method, request_id, key):
            async def results_async(*, timeout_s, return_exceptions):
                assert (timeout_s, return_exceptions) == (deployment.OTHERS_TIMEOUT_S, True)
                if isinstance(replies, Exception):
                    raise replies
                return replies

            calls.append((method, request_id, key))
            return SimpleNamespace(results_async=results_async)

        handles = {("router", "skim"): SimpleNamespace(broadcast=broadcast)}
        monkeypatch.setattr(serve, "get_replica_context", lambda: SimpleNamespace(deployment="router", app_name="skim"))
        monkeypatch.setattr(serve, "get_deployment_handle", lambda name, app: handles[name, app])
        return await RouterDeployment._ask_other_routers(object.__new__(RouterDeployment), method, "r1", "team")

    ask.calls = calls
    return ask


async def test_the_entry_of_any_router_is_found(ask):
    assert await ask([None, ActorDiedError(), '{"kept_tokens": 1}']) == '{"kept_tokens": 1}'
    assert await ask(['{"headers": {}}', None], "held_report") == '{"headers": {}}'
    assert ask.calls == [("held_selection", "r1", "team"), ("held_report", "r1", "team")]
    assert callable(RouterDeployment.held_selection)
    assert callable(RouterDeployment.held_report)


@pytest.mark.parametrize(
    "replies", [[], [None], [ActorDiedError()], ActorDiedError(), TimeoutError(), DeploymentUnavailableError(None)]
)
async def test_routers_that_are_gone_have_none(ask, replies):
    assert await ask(replies) is None


async def test_a_router_that_starts_holds_nothing():
    starting = object.__new__(RouterDeployment)
    starting._view = None
    assert await starting.held_selection("r1") is None
