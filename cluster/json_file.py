"""Text and JSON files of the command line's tools; what is wrong with one is a sentence that names it."""

import json
from pathlib import Path
from typing import Any

from kv_transfer.errors import SkimError


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises SkimError naming the file."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SkimError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises SkimError naming the file."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise SkimError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from None


def write_json(path: Path, value: Any) -> None:
    """Write `value` with a final newline. Raises SkimError if the file cannot be written."""
    try:
        path.write_text(json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise SkimError(f"cannot write {path}: {error.strerror}") from None
