"""A file system that dies at its n-th step: before it, in the middle of it, or right after it."""

from typing import Any

STAGES = ("before", "midst", "after")


class Killed(BaseException):
    """Stands for SIGKILL: no code catches it."""


class MortalStorage:
    """Passes all calls to `storage` and dies after `life` steps. A step changes something; `left` counts those left.

    The stage "midst" leaves half of the bytes of a write, both names of a move, or half of the files of a removal.
    """

    def __init__(self, storage: Any, life: int, stage: str) -> None:
        self._storage, self.left, self._stage = storage, life, stage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def open(self, path: str, mode: str) -> Any:
        self._step(lambda: self._storage.open(path, mode).close(), lambda: None)
        return _MortalFile(self._storage.open(path, mode), self._step)

    def mv(self, source: str, target: str) -> None:
        self._step(lambda: self._storage.mv(source, target), lambda: self._storage.copy(source, target))

    def rm(self, path: str, recursive: bool = False) -> None:
        def half() -> None:
            files = self._storage.find(path)
            for file in files[: len(files) // 2]:
                self._storage.rm(file)

        self._step(lambda: self._storage.rm(path, recursive=recursive), half)

    def _step(self, whole: Any, half: Any) -> None:
        self.left -= 1
        if self.left >= 0:
            whole()
            return
        if self._stage != "before":
            (half if self._stage == "midst" else whole)()
        raise Killed


class _MortalFile:
    """A file being written. Bytes that were written before the process dies stay on the disk."""

    def __init__(self, file: Any, step: Any) -> None:
        self._file, self._step = file, step

    def write(self, data: bytes) -> None:
        self._step(lambda: self._file.write(data), lambda: self._file.write(data[: len(data) // 2]))

    def __enter__(self) -> "_MortalFile":
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
