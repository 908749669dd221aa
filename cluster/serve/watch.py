"""Looks at a running deployment again and again, for `skim serve`, and ends when its Ray is gone."""

from collections.abc import Callable, Sequence
from threading import Event

import ray

from actors.ray_hooks.local_ray import dead_ray_process
from cluster.serve.ray_cluster import call_with_timeout, ray_answers
from cluster.serve.status import PartStatus, current_parts
from skim_common.errors import SkimError

PERIOD_S = 2.0
LIMIT_S = 10.0
"""How often the parts are looked at, and how long Serve may take to answer."""

RAY_GONE_AFTER_S = 30.0
"""Maximum time for which a Ray that was not started here may be out of reach: its head may be starting again."""


class RayGoneError(SkimError):
    """The Ray cluster under a deployment has ended."""


class Changes:
    """Turns looks at the parts into lines, one for each change."""

    def __init__(self, print_line: Callable[[str], None]) -> None:
        self._print_line = print_line
        self._down: dict[str, str] = {}

    def look(self, parts: Sequence[PartStatus]) -> None:
        """Say what changed since the last look."""
        for part in parts:
            if part.reason and self._down.get(part.name) != part.reason:
                self._print_line(part.line)
        down = {part.name: part.reason for part in parts if part.reason}
        for name in self._down.keys() - down:
            self._print_line(f"{name} is back")
        self._down = down

    def lost(self, reason: str) -> None:
        """Say once that Serve itself does not answer."""
        if "Serve" not in self._down:
            self._print_line(f"Serve: {reason}")
        self._down.setdefault("Serve", reason)


def watch(stop: Event, changes: Changes, period_s: float = PERIOD_S) -> None:
    """Until `stop` is set, every `period_s` seconds. Raises RayGoneError if Ray has ended."""
    silent_s = 0.0
    while not stop.wait(period_s):
        if dead := dead_ray_process():
            raise RayGoneError(f"Ray has ended, because its process {dead} has died: start `skim serve` again")
        try:
            parts = call_with_timeout(current_parts, LIMIT_S)
            silent_s = 0.0
        except Exception as error:
            silent_s += period_s + (LIMIT_S if isinstance(error, TimeoutError) else 0.0)
            if not ray.is_initialized() or (silent_s > RAY_GONE_AFTER_S and not ray_answers()):
                raise RayGoneError(
                    "the Ray cluster does not answer any more: start it and `skim serve` again"
                ) from None
            changes.lost("its controller does not answer; Ray restarts it")
            continue
        if parts is None:
            raise RayGoneError("the deployment has been deleted from its Ray cluster")
        changes.look(parts)
