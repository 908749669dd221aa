"""What fails while a deployment starts or ends is one sentence, and Ray is left."""

import pytest
from ray.exceptions import GetTimeoutError, RayTaskError

from cluster.serve import deployment
from cluster.serve.ray_cluster import as_skim_error
from skim_common.errors import SkimError


def remote_error():
    """As a proxy that cannot listen."""
    trace = "Traceback (most recent call last):\n  File 'x.py', line 3\nRuntimeError: the port 8000 is in use.\n"
    return RayTaskError("ready", trace, RuntimeError("the port 8000 is in use."))


@pytest.mark.parametrize(
    ("raised", "reason"),
    [
        (TimeoutError("HTTP proxies not available after 60s."), "HTTP proxies not available after 60s"),
        (GetTimeoutError("Get timed out"), "Get timed out"),
        (Exception("The current node timed out\nduring startup."), "The current node timed out"),
        (OSError(28, "No space left on device"), r"\[Errno 28\] No space left on device"),
        (remote_error(), "the port 8000 is in use"),
        (AssertionError(), "AssertionError"),
    ],
)
def test_what_ray_raises_is_one_sentence(raised, reason):
    with (
        pytest.raises(SkimError, match=f"^it did not start: {reason}; start again$") as told,
        as_skim_error("it did not start", "start again"),
    ):
        raise raised
    assert told.value.__cause__ is raised


def test_a_sentence_of_skim_stays_as_it_is():
    with pytest.raises(SkimError, match=r"^no such folder$"), as_skim_error("it did not start", "start again"):
        raise SkimError("no such folder")


def test_the_end_of_a_start_that_failed_leaves_ray_also_if_serve_is_dead(monkeypatch):
    left = []
    monkeypatch.setattr(deployment.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(deployment.ray, "shutdown", lambda: left.append("ray"))
    monkeypatch.setattr(deployment, "ray_answers", lambda: True)
    monkeypatch.setattr(deployment, "drain_connections", lambda name: None)

    def delete(name):
        raise remote_error()

    monkeypatch.setattr(deployment.serve, "delete", delete)
    deployment._stop("skim")
    assert left == ["ray"]
