"""What is read from files that may change while a process runs."""

import logging
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

from skim_common.errors import SkimError

logger = logging.getLogger(__name__)

T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """What `read` makes of files, read again when one of them has changed. Threads may share it. If `read` raises
    SkimError then, the last result stays, and the log has one error."""

    def __init__(self, paths: Sequence[str | os.PathLike[str]], read: Callable[[], T], what: str) -> None:
        """what: names the result in the log, in the plural."""
        self._paths, self._read, self._what = paths, read, what
        self._lock = threading.Lock()
        self._seen = self._state()
        self._current = read()

    def current(self) -> T:
        """The newest result; the same object until the files change."""
        with self._lock:
            if (state := self._state()) != self._seen:
                self._seen = state
                try:
                    self._current = self._read()
                    logger.info("%s have changed", self._what)
                except SkimError as error:
                    logger.error("%s stay as they were: %s", self._what, error)
            return self._current

    def _state(self) -> list[tuple[int, int, int]]:
        """What changes when a file does. Kubernetes replaces the folder behind a link."""
        state = []
        for path in self._paths:
            with suppress(OSError):
                status = os.stat(path)
                state.append((status.st_mtime_ns, status.st_size, status.st_ino))
        return state
