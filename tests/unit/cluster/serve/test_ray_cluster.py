"""What fails while a deployment starts: one sentence, one more attempt where it can help, no process left."""

import subprocess
import sys

import psutil
import pytest
from ray.exceptions import GetTimeoutError, RayTaskError

from cluster.serve import deployment
from cluster.serve.ray_cluster import ATTEMPTS, as_skim_error, retried
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


class Start:
    """A start that runs a process and then fails with `error`, `failures` times."""

    def __init__(self, error, failures):
        self.error, self.failures, self.processes = error, failures, []

    def __call__(self):
        self.processes.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]))
        if len(self.processes) <= self.failures:
            if not isinstance(self.error, Exception):
                raise self.error
            with as_skim_error("it did not start", "start again"):
                raise self.error

    def alive(self):
        return [process.pid for process in self.processes if process.poll() is None]


@pytest.fixture
def start():
    """A maker of starts, whose processes end with the test."""
    made = []

    def make(*given):
        made.append(Start(*given))
        return made[-1]

    yield make
    for process in [process for one in made for process in one.processes]:
        process.kill()
        process.wait()


def test_a_start_that_is_slow_once_is_tried_again(start):
    slow = start(TimeoutError("slow"), 1)
    retried(slow)
    assert slow.alive() == [slow.processes[1].pid]  # the first one's process has ended


def test_a_start_that_stays_slow_is_told_and_leaves_no_process(start):
    slow = start(TimeoutError("slow"), ATTEMPTS)
    with pytest.raises(SkimError, match=r"^it did not start: slow; start again$"):
        retried(slow)
    assert (len(slow.processes), slow.alive()) == (ATTEMPTS, [])


@pytest.mark.parametrize(
    ("error", "told"), [(ValueError("num_cpus"), SkimError), (KeyboardInterrupt(), KeyboardInterrupt)]
)
def test_what_another_attempt_cannot_change_is_not_tried_again(start, error, told):
    wrong = start(error, 1)
    with pytest.raises(told):
        retried(wrong)
    assert (len(wrong.processes), wrong.alive()) == (1, [])


def test_a_process_from_before_is_left_alone(start):
    earlier = start(None, 0)
    earlier()
    with pytest.raises(SkimError):
        retried(start(TimeoutError("slow"), ATTEMPTS))
    assert psutil.pid_exists(earlier.processes[0].pid)
    assert earlier.alive()


def test_a_ray_that_starts_at_the_second_attempt_serves(monkeypatch):
    """`ray.init` itself fails once, with an error that is neither of Ray's kinds nor of Python's for connections."""
    calls = []

    def init(**options):
        calls.append(options)
        if len(calls) == 1:
            raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(deployment.ray, "init", init)
    monkeypatch.setattr(deployment, "needed_resources", lambda *_, **__: {"CPU": 1.0, "target_pool": 1.0})
    deployment._start_ray(None)
    assert calls[0] == calls[1]
    assert calls[0]["address"] == "local"


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
