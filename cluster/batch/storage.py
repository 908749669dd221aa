"""Files and objects by path or fsspec URL. A written file appears complete or, after a kill, not at all."""

import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

from skim_common.errors import SkimError


def locate(url: str) -> tuple[Any, str]:
    """The file system of `url` and the path in it. url: a path, or a URL such as s3://bucket/key. Raises SkimError."""
    try:
        return fsspec.core.url_to_fs(os.path.expanduser(url))
    except ImportError as error:
        raise SkimError(f"{url} cannot be reached: {error}") from None
    except ValueError as error:
        raise SkimError(f"{url} is neither a path nor a URL that fsspec knows: {error}") from None


@contextmanager
def open_rows(url: str) -> Iterator[BufferedReader]:
    """The input at `url`, from its first byte on. Raises SkimError, also for a file that is no text."""
    fs, path = locate(url)
    with storage_errors(url), fs.open(path, "rb") as raw:
        file = BufferedReader(raw)
        if b"\0" in (head := file.peek(1)) or head.startswith(b"\x1f\x8b"):
            raise SkimError(f"{url} is no text: it must hold one JSON object per line, in UTF-8; unpack a packed file")
        yield file


def shared_path(url: str) -> str:
    """`url`, by which every process of this machine finds the same file. Raises SkimError for a pipe.

    /dev/stdin is another file in each process; a pipe can be read only once, and only here.
    """
    if not is_local(url):
        return url
    path = locate(url)[1]
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise SkimError(f"{url} is a pipe or a device, and a batch reads its input more than once: write it to a file")
    return os.path.realpath(path)


def is_local(url: str) -> bool:
    """Whether `url` is on a local disk, which other machines may not see."""
    return isinstance(locate(url)[0], LocalFileSystem)


def absolute(url: str, folder: Path) -> str:
    """`url`, with a relative local path resolved from `folder`. URLs are unchanged."""
    return url if "://" in url or "::" in url else str(folder / os.path.expanduser(url))


@contextmanager
def storage_errors(url: str) -> Iterator[None]:
    """Turn errors of the storage at `url` into a SkimError of one sentence."""
    try:
        yield
    except FileNotFoundError as error:
        raise SkimError(f"{error.filename or url} does not exist") from None
    except OSError as error:
        raise SkimError(f"{url}: {error.strerror or error}") from error
    except Exception as error:
        # An exception of a driver, such as botocore's for missing credentials. A built-in one would be our bug.
        if isinstance(error, SkimError) or type(error).__module__ == "builtins":
            raise
        raise SkimError(f"{url}: {error}") from error


def write(fs: Any, path: str, chunks: Iterable[bytes], *, scratch: str | None = None) -> None:
    """Replace the content of `path` by `chunks` in one step: write a temporary file, then move it to `path`.

    scratch: folder of the temporary file, on the same file system; default: that of `path`. The move is atomic on local
    disks (rename) and on object stores (server-side copy). Only a kill before the move leaves the file.
    """
    folder, _, name = path.rpartition("/")
    temporary = f"{folder if scratch is None else scratch}/{name}.{uuid.uuid4().hex}.tmp"
    try:
        with fs.open(temporary, "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            if isinstance(fs, LocalFileSystem):
                # Without fsync, a crash of the machine may keep the new name and lose the content.
                file.flush()
                os.fsync(file.fileno())
        fs.mv(temporary, path)
    except BaseException:
        with suppress(Exception):
            fs.rm_file(temporary)
        raise
