"""The results of a run in a file, so that a run that is cut off goes on.

The first line names what all others depend on.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from skim_common.errors import SkimError


class JsonLines:
    """Results of a run, one a line, written as they come. path: None keeps nothing."""

    def __init__(
        self, path: Path | None, head: Mapping[str, Any], writer: str, take: Callable[[dict[str, Any]], None]
    ) -> None:
        """Read the file if it exists, else create it.

        head: JSON values, the first line: what all others depend on. writer: what writes such files, for an error.
        take: gets each line after the first. Raises SkimError for a file with another head, and for one that is none.
        """
        self._path = path
        if path is None:
            return
        wanted = json.loads(json.dumps(head))
        try:
            if not path.exists():
                path.write_text(json.dumps(wanted) + "\n", encoding="utf-8")
            whole, _, torn = path.read_text(encoding="utf-8").rpartition("\n")
            if torn:
                # The run was stopped in the middle of this line; what follows must begin a new one.
                path.write_text(f"{whole}\n", encoding="utf-8")
            first, *lines = map(json.loads, whole.splitlines())
            if first.keys() != wanted.keys():
                raise ValueError
            if first != wanted:
                raise SkimError(f"{path} has results of another run ({json.dumps(first)}): give a new file")
            for line in lines:
                take(line)
        except OSError as error:
            raise SkimError(f"cannot use {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SkimError(f"{path} is not a file that {writer} wrote") from None

    def append(self, line: Mapping[str, Any]) -> None:
        """Write one more line."""
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
