"""The progress of a batch, in the folder `out.jsonl.batch/` beside its output.

`plan.json` identifies the input. `parts/00000012.jsonl` holds the answers to part 12. A part's file appears whole or
not at all, so its presence means that its rows are done. The last step joins the parts in their order and removes them.
No file is ever appended to, because object stores cannot append.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec

from cluster.batch.rows import BatchAnswer, InputPlan, Part
from cluster.batch.storage import locate, storage_errors, write
from skim_common.errors import SkimError

VERSION = 3
GLOB = frozenset("*?[]")

_ANSWER = msgspec.json.Decoder(BatchAnswer)


class _Plan(msgspec.Struct):
    """The content of plan.json. version: of the way to divide an input."""

    version: int
    fingerprint: str
    finished: bool = False


class Journal:
    """The journal of the output at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._output = locate(url)
        if GLOB & set(self._output):
            # fsspec would take such a name for a pattern and could remove files of others.
            raise SkimError(f"--output {url} must not contain the characters {' '.join(sorted(GLOB))}")
        self._folder = f"{self._output}.batch"
        self._plan_file, self._parts = f"{self._folder}/plan.json", f"{self._folder}/parts"
        self._plan: _Plan | None = None

    def open(self, plan: InputPlan) -> bool:
        """Begin or continue the output of this input. Returns whether it is already finished. Raises SkimError."""
        with storage_errors(self._url):
            self._fs.invalidate_cache()
            begun, exists = self._read_plan(), self._fs.exists(self._output)
            if begun is None and exists:
                raise SkimError(f"{self._url} already exists: remove it, or give another --output")
            if begun is None or (begun.finished and not exists):
                self._remove_parts()
                self._fs.makedirs(self._parts, exist_ok=True)
                self._write_plan(_Plan(VERSION, plan.fingerprint))
                return False
            if begun.fingerprint != plan.fingerprint:
                old = f"{self._url} and {self._url}.batch" if exists else f"{self._url}.batch"
                raise SkimError(
                    f"{self._url} was begun with another input, or the input has changed since: use that input, "
                    f"give another --output, or remove {old} to start again"
                )
            self._plan = begun
            if begun.finished:
                self._remove_parts()
            return begun.finished

    def _read_plan(self) -> _Plan | None:
        if not self._fs.exists(self._plan_file):
            return None
        try:
            plan = msgspec.json.decode(self._fs.cat_file(self._plan_file), type=_Plan)
        except msgspec.MsgspecError as error:
            raise SkimError(f"{self._url}.batch is not a readable journal ({error}): remove it") from None
        if plan.version != VERSION:
            raise SkimError(f"{self._url} was begun by another version of Skim: finish it with that version")
        return plan

    def _write_plan(self, plan: _Plan) -> None:
        write(self._fs, self._plan_file, [msgspec.json.encode(plan)])
        self._plan = plan

    def done(self) -> set[int]:
        """Indices of the finished parts."""
        with storage_errors(self._url):
            self._fs.invalidate_cache()
            # An object store has no empty folders.
            files = self._fs.ls(self._parts, detail=False) if self._fs.exists(self._parts) else []
            names = (str(file).rpartition("/")[2].partition(".") for file in files)
            return {int(index) for index, _, kind in names if kind == "jsonl" and index.isdecimal()}

    def commit(self, part: Part, answers: Sequence[BatchAnswer]) -> None:
        """Write the answers to `part`, in its order: all of them or, after a kill, none."""
        with storage_errors(self._url):
            write(self._fs, self._path(part), (msgspec.json.encode(answer) + b"\n" for answer in answers))

    def finish(self, parts: Sequence[Part]) -> int | None:
        """Join all parts into the output and remove them. Returns the number of rows without an answer, or with an HTTP
        error; None if another job of the batch has joined them meanwhile.

        An incomplete part is removed and raises SkimError.
        """
        assert self._plan is not None, "call open() first"
        failed: list[int] = []
        with storage_errors(self._url):
            try:
                write(self._fs, self._output, self._joined(parts, failed), scratch=self._folder)
            except FileNotFoundError:
                self._fs.invalidate_cache()
                if (plan := self._read_plan()) is None or not plan.finished:
                    raise
                return None
            self._write_plan(msgspec.structs.replace(self._plan, finished=True))
            self._remove_parts()
        return sum(failed)

    def _joined(self, parts: Sequence[Part], failed: list[int]) -> Iterator[bytes]:
        """The content of the output. failed: gets the number of failed rows of each part."""
        for part in parts:
            data: bytes = self._fs.cat_file(self._path(part))
            answers: list[BatchAnswer] = []
            with suppress(msgspec.DecodeError):  # the last line may be cut off
                answers += (_ANSWER.decode(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n"))
            if len(answers) != part.rows:
                self._fs.rm(self._path(part))
                raise SkimError(
                    f"{self._path(part)} held {len(answers)} of its {part.rows} rows (because of a full disk or a "
                    "crash) and was removed: submit the batch again to send these rows again"
                )
            failed.append(sum(answer.failed for answer in answers))
            yield data

    def _path(self, part: Part) -> str:
        return f"{self._parts}/{part.index:08d}.jsonl"

    def _remove_parts(self) -> None:
        if self._fs.exists(self._parts):
            self._fs.rm(self._parts, recursive=True)
