"""The file of a step's result."""

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.steps.checks import Settings


class Result:
    """The file of a step's result. It is complete at all times; `complete` in it says whether the step has ended."""

    def __init__(self, settings: Settings, name: str) -> None:
        self._file = Path(settings.folder) / f"{name}.json"
        self._command = f"python -m benchmarks.gpu session --only {name}"

    def partial(self, result: dict[str, Any]) -> None:
        self._write(result, complete=False)

    def whole(self, result: dict[str, Any]) -> None:
        self._write(result, complete=True)

    def _write(self, result: dict[str, Any], *, complete: bool) -> None:
        making = self._file.with_suffix(".new")
        text = {**result, "command": self._command, "complete": complete}
        making.write_text(json.dumps(text, indent=2) + "\n", encoding="utf-8")
        making.replace(self._file)
