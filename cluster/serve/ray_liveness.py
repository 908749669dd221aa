"""Calls to Ray with a time limit, and whether Ray lives: Ray's own calls wait for a dead head without a limit."""

from collections.abc import Callable
from queue import Empty, Queue
from threading import Thread
from typing import TypeVar

import ray

from actors.ray_hooks.local_ray import dead_ray_process

T = TypeVar("T")

ANSWER_LIMIT_S = 10.0


def call_with_timeout(call: Callable[[], T], timeout_s: float) -> T:
    """The result of `call`. Raises TimeoutError after `timeout_s`; the call goes on in a thread of its own."""
    results: Queue[tuple[T | None, Exception | None]] = Queue()

    def run() -> None:
        try:
            results.put((call(), None))
        except Exception as error:
            results.put((None, error))

    Thread(target=run, daemon=True).start()
    try:
        result, error = results.get(timeout=timeout_s)
    except Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # None only where T is


def ray_answers() -> bool:
    """Whether the connected Ray cluster still has a head that answers."""
    if not ray.is_initialized() or dead_ray_process():
        return False
    try:
        call_with_timeout(ray.nodes, ANSWER_LIMIT_S)
    except Exception:
        return False
    return True
