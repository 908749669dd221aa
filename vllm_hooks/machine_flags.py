"""What the engines of one machine tell each other between two steps: locked bytes of a file in its temporary folder.

Pools that share cores or a GPU slow each other, and no engine sees that alone. A lock costs a microsecond and ends with
its process. Engines with another user or another temporary folder, as in another pod, see nothing.
"""

import fcntl
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STREAM_SHARE = "skim_stream_share"
"""Key in VllmConfig.additional_config: `target.stream_share`. Without it, an engine neither sets flags nor looks."""
READING, OWED = 0, 1
"""Flags: an engine reads prompts without streams of its own; streams of an engine are owed time."""


_log = logging.getLogger(__name__)


def with_stream_share(options: Mapping[str, Any], share: float | None) -> dict[str, Any]:
    """The engine options that change for this share; none without one."""
    if share is None:
        return {}
    return {"additional_config": {**(options.get("additional_config") or {}), STREAM_SHARE: share}}


class MachineFlags:
    """The flags of this process, and whether another process has one. Create one object per process and file."""

    def __init__(self, file: Path | None = None) -> None:
        """file: for tests. None: one for all engines of this user."""
        file = file or Path(tempfile.gettempdir()) / f"skim-streams-{os.getuid()}"
        self._mine: set[int] = set()
        self._file: int | None = None
        try:
            self._file = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            _log.warning("engines of this machine that share cores or a GPU are not paced: %s", error)

    def hold(self, flag: int, held: bool) -> None:
        """Set or clear a flag of this process."""
        if self._file is not None and held != (flag in self._mine):
            fcntl.lockf(self._file, fcntl.LOCK_SH if held else fcntl.LOCK_UN, 1, flag)
            self._mine ^= {flag}

    def seen(self, flag: int) -> bool:
        """Whether another process has the flag. Ask for one that this process does not have."""
        if self._file is None:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, flag)
        except OSError:
            return True
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, flag)
        return False
