"""The processes of Serve ask its controller again when an answer does not come.

Each of them learns of new replicas by a call to the controller that is always open: it returns when something changed
or after some seconds, and then the next one begins. Ray repeats a call that a dead controller left open, but times this
by the wall clock: after that was set back by an hour, an hour late.

Hooks into ray.serve._private.long_poll.LongPollClient of the pinned Ray: `_poll_next` is replaced. Like Ray's, it uses
`is_running`, `host_actor`, `snapshot_ids`, `_callbacks_processed_count`, `_current_ref` and `_process_update`, and also
`event_loop`. `core_worker` of ray._private.worker.global_worker is the connection to Ray, and `connected` says whether
it may be used: it ends some time before `core_worker` is gone, and calls meanwhile end the process.
"""

from typing import Any

from ray._private import worker
from ray.serve._private.long_poll import LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S, LongPollClient

LIMIT_S = LISTEN_FOR_CHANGE_REQUEST_TIMEOUT_S[1] + 5.0
"""The controller answers 5 s earlier at the latest, also if nothing changed."""


def repeat_polls() -> None:
    """In this process, from each client's next call on."""
    LongPollClient._poll_next = _poll_next


def _poll_next(client: Any) -> None:
    """As Ray's method, and only the answer to the latest call counts; another one follows after LIMIT_S in any case."""
    connection = _connection()
    # In a process that has left its Ray, a call would start another one.
    if not client.is_running or connection is None:
        return
    client._callbacks_processed_count = 0
    call = client._current_ref = client.host_actor.listen_for_change.remote(client.snapshot_ids)
    number = client.polls = getattr(client, "polls", 0) + 1

    def answered(update: Any) -> None:
        # Ray holds this function, and so the reference, until the answer: a large answer to a call without a reference
        # would end the process.
        if client._current_ref is call:
            client._process_update(update)

    call._on_completed(answered)

    def repeat() -> None:
        # By the number, since a reference that is held until here would outlive the connection.
        if client.polls == number and _connection() is connection:
            client._poll_next()

    client.event_loop.call_later(LIMIT_S, repeat)


def _connection() -> Any:
    """Of this process to Ray: another object after each ray.init; None without one, from the begin of ray.shutdown."""
    return getattr(worker.global_worker, "core_worker", None) if worker.global_worker.connected else None
