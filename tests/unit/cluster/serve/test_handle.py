"""A command's handle needs no event loop, whatever the environment of a pod says."""

from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve

from cluster.serve.ray_cluster import app_handle


class Handle(SimpleNamespace):
    """As ray.serve.handle.DeploymentHandle: a second `_init` is an error."""

    is_initialized = False

    def _init(self, **options: Any) -> None:
        assert not self.is_initialized
        self.is_initialized, self.options = True, options


@pytest.mark.parametrize("times", [1, 2])
def test_its_router_has_a_loop_of_its_own(monkeypatch, times):
    """Serve's client gives the same handle again."""
    handle = Handle()
    monkeypatch.setattr(serve, "get_app_handle", lambda name: handle)
    for _ in range(times):
        assert app_handle("skim").options == {"_run_router_in_separate_loop": True}
