"""Files and objects by path or fsspec URL: whole ones appear at once, so that a kill leaves either all or nothing."""

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from kv_transfer.errors import SkimError


def locate(url: str) -> tuple[Any, str]:
    """File system and path in it of `url`: a path, or an fsspec URL such as s3://bucket/key. Raises SkimError."""
    try:
        fs, path = fsspec.core.url_to_fs(os.path.expanduser(url))
    except ImportError as error:
        raise SkimError(f"{url} cannot be reached: {error}") from None
    except ValueError as error:
        raise SkimError(f"{url} is no path and no URL that fsspec knows: {error}") from None
    return fs, path


def is_local(url: str) -> bool:
    """Whether `url` names a file that other machines need not see."""
    return isinstance(locate(url)[0], LocalFileSystem)


def absolute(url: str, folder: Path) -> str:
    """`url` with a relative local path taken from `folder`; URLs stay as they are."""
    if "://" in url or "::" in url:
        return url
    return str(folder / Path(url).expanduser())


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """What goes wrong with `url` inside becomes a SkimError of one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise SkimError(f"{error.filename or url} does not exist") from None
    except OSError as error:
        raise SkimError(f"{url}: {error.strerror or error}") from error
    except Exception as error:
        # A driver's own kind, such as botocore's for absent credentials; Python's own would be a fault of ours.
        if isinstance(error, SkimError) or type(error).__module__ == "builtins":
            raise
        raise SkimError(f"{url}: {error}") from error


def write(fs: Any, path: str, chunks: Iterable[bytes], *, scratch: str | None = None) -> None:
    """Make `path` hold `chunks`, all at once: they go to another name first, which then takes the place of `path`.

    scratch: folder for the other name, on the same file system; by default that of `path`. The move replaces in one
    step on local disks and object stores (rename, server-side copy). A kill before it leaves a `*.tmp`.
    """
    folder, _, name = path.rpartition("/")
    temporary = f"{folder if scratch is None else scratch}/{name}.{uuid.uuid4().hex}.tmp"
    with fs.open(temporary, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
        if isinstance(fs, LocalFileSystem):
            # A machine that goes down may keep the new name and lose what was under it.
            file.flush()
            os.fsync(file.fileno())
    fs.mv(temporary, path)
