"""A call to Serve's controller that is never answered is followed by another one, and only by one."""

import gc
import inspect
import weakref
from collections import deque
from importlib.util import module_from_spec, spec_from_file_location
from types import SimpleNamespace

import pytest
from ray.serve._private import long_poll
from ray.serve._private.long_poll import LongPollClient, LongPollState, UpdatedObject

from actors import repeated_polls
from actors.repeated_polls import LIMIT_S, repeat_polls
from cluster.serve.app import SERVE_SWITCHES
from cluster.serve.proxy_polls import repeat_polls_of

REPLACED = """
        if not self.is_running:
            return

        self._callbacks_processed_count = 0
        self._current_ref = self.host_actor.listen_for_change.remote(self.snapshot_ids)
        self._current_ref._on_completed(lambda update: self._process_update(update))
"""
"""The body of Ray's `_poll_next`."""


class Loop:
    """An event loop whose time is made by the test."""

    def __init__(self):
        self._soon, self._later = deque(), []

    def is_running(self):
        return True

    def call_soon_threadsafe(self, call, *given, context=None):
        self._soon.append(lambda: call(*given))

    def call_later(self, seconds, call):
        assert seconds == LIMIT_S
        self._later.append(call)

    def forget(self):
        self._soon.clear()

    def run(self):
        while self._soon:
            self._soon.popleft()()

    def wait(self):
        """The limit of all calls so far passes."""
        due, self._later = self._later, []
        for call in due:
            call()
        self.run()


class Call:
    """The reference to an answer."""

    def __init__(self, on_completed):
        self._on_completed = on_completed


class Controller:
    """calls: the version of the replicas that each one knows, and `answer`."""

    def __init__(self):
        self.calls = []
        self.listen_for_change = SimpleNamespace(remote=self._call)

    def _call(self, known):
        held = []

        def answer(update):
            # Ray lets go of each function as it calls it.
            while held:
                held.pop(0)(update)

        self.calls.append(SimpleNamespace(knows=known["replicas"], answer=answer))
        return Call(held.append)


def rays_own():
    """`_poll_next` as Ray has it, also if another test has replaced it."""
    found = spec_from_file_location("rays_own", long_poll.__file__)
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module.LongPollClient._poll_next


@pytest.fixture
def connected(monkeypatch):
    """This process is in Ray."""
    monkeypatch.setattr(repeated_polls.worker.global_worker, "_is_connected", True)
    monkeypatch.setattr(repeated_polls.worker.global_worker, "core_worker", object(), raising=False)


@pytest.fixture
def unrepeated(monkeypatch, connected):
    """loop, calls of the controller, seen: the replicas that the client was told, own: its LongPollClient."""
    monkeypatch.setattr(long_poll.metrics, "Histogram", lambda *_, **__: SimpleNamespace(observe=lambda *_, **__: None))
    monkeypatch.setattr(LongPollClient, "_poll_next", rays_own())
    loop, controller, seen = Loop(), Controller(), []
    own = LongPollClient(controller, {"replicas": seen.append}, loop, "test")
    return SimpleNamespace(loop=loop, calls=controller.calls, seen=seen, own=own)


@pytest.fixture
def client(unrepeated):
    repeat_polls()
    # Serve's client has bound Ray's method for its first call.
    unrepeated.loop.forget()
    unrepeated.own._poll_next()
    return unrepeated


def update(version):
    return {"replicas": UpdatedObject(f"replicas {version}", version, 0.0)}


@pytest.mark.parametrize(
    ("name", "later"), [("core_worker", None), ("core_worker", object()), ("_is_connected", False)]
)
def test_a_process_that_has_left_its_ray_calls_no_more(client, monkeypatch, name, later):
    """The call would start a Ray of its own, or go to one that does not know the controller, or end the process."""
    client.loop.wait()
    assert len(client.calls) == 2, "while it is in Ray"
    monkeypatch.setattr(repeated_polls.worker.global_worker, name, later)
    client.loop.wait()
    assert len(client.calls) == 2


def test_a_process_that_is_leaving_its_ray_does_not_follow_an_answer_with_a_call(client, monkeypatch):
    monkeypatch.setattr(repeated_polls.worker.global_worker, "_is_connected", False)
    client.calls[0].answer(update(1))
    client.loop.run()
    assert len(client.calls) == 1


def test_each_answer_is_followed_by_one_call(client):
    for version in range(5):
        assert len(client.calls) == version + 1
        client.calls[-1].answer(update(version))
        client.loop.run()
    client.calls[-1].answer(LongPollState.TIME_OUT)
    client.loop.run()
    assert [call.knows for call in client.calls] == [-1, 0, 1, 2, 3, 4, 4]
    assert client.seen == [f"replicas {version}" for version in range(5)]


def test_the_reference_to_an_answered_call_is_dropped(client):
    call = weakref.ref(client.own._current_ref)
    client.calls[0].answer(update(1))
    client.loop.run()
    gc.collect()
    assert call() is None


def test_the_reference_to_a_call_without_an_answer_is_held(client):
    """Until its answer, also after another call was made."""
    call = weakref.ref(client.own._current_ref)
    client.loop.wait()
    gc.collect()
    assert call() is not None
    client.calls[0].answer(update(1))
    gc.collect()
    assert call() is None


def test_a_call_without_an_answer_is_repeated(client):
    client.calls[0].answer(update(1))
    client.loop.run()
    client.loop.wait()
    assert [call.knows for call in client.calls] == [-1, 1, 1]
    client.calls[2].answer(update(2))
    client.loop.run()
    assert client.seen == ["replicas 1", "replicas 2"]


def test_the_late_answer_begins_no_second_row_of_calls(client):
    client.loop.wait()
    client.calls[1].answer(update(2))
    client.loop.run()
    client.calls[0].answer(update(1))
    client.loop.run()
    assert client.seen == ["replicas 2"]
    assert len(client.calls) == 3
    client.loop.wait()
    client.loop.wait()
    assert len(client.calls) == 5, "one row: each time one call is repeated"


def test_a_row_that_broke_goes_on(client):
    """Serve begins the next call only after all listeners took an update in."""
    client.own.key_listeners["replicas"] = lambda _: 1 / 0
    client.calls[0].answer(update(1))
    with pytest.raises(ZeroDivisionError):
        client.loop.run()
    client.loop.wait()
    assert len(client.calls) == 2


def test_a_client_that_was_stopped_calls_no_more(client):
    client.own.stop()
    client.loop.wait()
    assert len(client.calls) == 1


def test_ray_alone_repeats_no_call(unrepeated):
    """Negative control."""
    unrepeated.loop.run()
    unrepeated.loop.wait()
    assert len(unrepeated.calls) == 1


def test_the_open_call_of_a_proxy_is_repeated_at_once(unrepeated):
    unrepeated.loop.run()
    repeat_polls_of(SimpleNamespace(long_poll_client=unrepeated.own))
    unrepeated.loop.run()
    assert len(unrepeated.calls) == 2
    unrepeated.calls[1].answer(update(1))
    unrepeated.loop.run()
    unrepeated.calls[0].answer(update(1))
    unrepeated.loop.run()
    for _ in range(3):
        before = len(unrepeated.calls)
        unrepeated.loop.wait()
        assert len(unrepeated.calls) == before + 1, "one row"


def test_the_reference_to_the_open_call_of_a_proxy_is_held(unrepeated):
    unrepeated.loop.run()
    call = weakref.ref(unrepeated.own._current_ref)
    repeat_polls_of(SimpleNamespace(long_poll_client=unrepeated.own))
    unrepeated.loop.run()
    gc.collect()
    assert call() is not None
    unrepeated.calls[0].answer(update(1))
    gc.collect()
    assert call() is None


def test_the_controller_answers_within_the_limit():
    upper = "LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S_UPPER_BOUND"
    lower = "LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S_LOWER_BOUND"
    assert float(SERVE_SWITCHES[lower]) < float(SERVE_SWITCHES[upper])
    source = inspect.getsource(long_poll)
    assert upper in source
    assert lower in source
    assert long_poll.LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S[1] < LIMIT_S


def test_ray_has_the_method_that_is_replaced():
    assert REPLACED in inspect.getsource(long_poll)
