"""Tell the process that starts an engine why it did not start.

vLLM starts an engine in processes of its own and reports their failure as "see root cause above": the cause is only
in their log. `register` (a `vllm.general_plugins` entry point, called in each of those processes) adds a log handler
that notes the exceptions in a file. It does nothing unless `VllmSpeculator` is starting an engine.
"""

import json
import logging
import os
from pathlib import Path

START_UP_FILE = "SKIM_SPECULATOR_START_UP_FILE"
"""Environment variable with the file that exceptions are noted in; set while an engine starts, and only then."""


class _NoteExceptions(logging.Handler):
    """Appends [type, message] of each logged exception to a file, a JSON line each."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        # The file is gone once the engine has started.
        if record.exc_info and record.exc_info[1] and os.path.exists(self._path):
            error = record.exc_info[1]
            with open(self._path, "a", encoding="utf-8") as notes:
                notes.write(json.dumps([type(error).__name__, str(error)]) + "\n")


def register() -> None:
    """Note this process's start-up exceptions if it belongs to a speculator engine that is starting."""
    if path := os.environ.get(START_UP_FILE):
        logging.getLogger("vllm").addHandler(_NoteExceptions(path))


def first_exception(path: str) -> tuple[str, str] | None:
    """Type name and message of the first exception noted: later ones are its consequences in other processes."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    if not lines:
        return None
    kind, message = json.loads(lines[0])
    return kind, message
