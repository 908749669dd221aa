"""Text and JSON files of the command line's tools; what is wrong with one is a sentence that names it."""

import json
import os
import stat
import uuid
from pathlib import Path
from typing import Any

from skim_common.errors import SkimError


def read_text(path: Path) -> str:
    """The text of a UTF-8 file. Raises SkimError naming the file."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SkimError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}") from None


def read_json(path: Path) -> Any:
    """The content of a JSON file. Raises SkimError naming the file."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise SkimError(f"{path} is not JSON (line {error.lineno}: {error.msg})") from None


def replace_text(path: Path, text: str, *, mode: int = 0o666) -> None:
    """Replace the file's content in one step: on a full disk, or after a kill, the old file stays as it was.

    mode: the permissions of a new file, less the umask. A device or a pipe is written to. Raises OSError.
    """
    file = path.resolve()
    if file.exists() and not file.is_file():
        path.write_text(text, encoding="utf-8")
        return
    temporary = file.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as written:
            if file.exists():
                os.fchmod(written.fileno(), stat.S_IMODE(file.stat().st_mode))
            written.write(text)
            written.flush()
            os.fsync(written.fileno())  # otherwise a crash of the machine may keep the new name and lose the content
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Replace the file at once by `value` with a final newline. Raises SkimError if the file cannot be written."""
    try:
        replace_text(path, json.dumps(value, indent=1) + "\n")
    except OSError as error:
        raise SkimError(f"cannot write {path}: {error.strerror}") from None
