"""The counts of replicas in what Serve's controller reports."""

from types import SimpleNamespace

import pytest

from actors.ray_hooks import serve
from router.pools import availability as serve_state
from router.pools.availability import Replicas, ServeState

TARGET = {"target_num_replicas": 3, "replicas": [{"state": s} for s in ("RUNNING", "STARTING", "STOPPING", "RUNNING")]}
REPORT = {"applications": {"skim": {"deployments": {"target": TARGET}}, "batch": {"deployments": {"other": TARGET}}}}


@pytest.fixture
def asked(monkeypatch):
    """The names of the actors that were looked up. The controller gives REPORT."""
    asked = []

    async def report():
        return REPORT

    def get_actor(*name):
        asked.append(name)
        return SimpleNamespace(get_serve_instance_details=SimpleNamespace(remote=report))

    monkeypatch.setattr(serve.ray, "get_actor", get_actor)
    return asked


@pytest.mark.parametrize(("app", "counts"), [("skim", {"target": Replicas(3, 2)}), ("deleted", {})])
async def test_the_replicas_that_serve_of_ones_own_application(monkeypatch, asked, app, counts):
    context = SimpleNamespace(app_name=app)
    monkeypatch.setattr(serve_state.serve, "get_replica_context", lambda: context)
    state = ServeState()
    assert await state() == counts
    assert await state() == counts
    assert len(asked) == 1, "the controller is looked up once: a restarted one is the same actor"


def test_serve_reports_under_these_names():
    """Its controller sends these models as dicts."""
    from ray.serve.schema import DeploymentDetails, ReplicaDetails

    assert {"target_num_replicas", "replicas"} <= DeploymentDetails.model_fields.keys()
    assert "state" in ReplicaDetails.model_fields
