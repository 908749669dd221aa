"""What is done of a batch, beside its output: `out.jsonl.batch/` while it runs, and after it what it was made from.

`plan.json` says which input the output is of. `parts/00000012.jsonl` is the answer to part 12: it appears whole or not
at all, so that its presence is the record that its rows are done, and a row that is asked twice (because a kill came
between answer and record, or two jobs ran at once) is still written once. The last step joins the parts in input order.
Nothing is ever appended to: object stores cannot.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import msgspec

from cluster.batch.plan import InputPlan, Part
from cluster.batch.rows import BatchAnswer
from cluster.batch.storage import locate, storage_errors, write
from kv_transfer.errors import SkimError

VERSION = 1
READ_AHEAD = 16
"""Parts that are read at once while they are joined: an object store answers many as fast as one."""
GLOB = frozenset("*?[]")

_ANSWER = msgspec.json.Decoder(BatchAnswer)


class _Plan(msgspec.Struct):
    """plan.json. rows, parts: how the input was cut."""

    version: int
    fingerprint: str
    rows: int
    parts: int
    finished: bool = False


@dataclass(slots=True)
class Totals:
    """Of the whole output. failed: rows without an answer, or with an HTTP error for one."""

    rows: int = 0
    failed: int = 0


class Journal:
    """The journal of the output at `url`."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._fs, self._output = locate(url)
        if GLOB & set(self._output):
            # fsspec would take it for a pattern, and remove the files of others.
            raise SkimError(f"--output {url} must do without the characters {' '.join(sorted(GLOB))}")
        self._folder = f"{self._output}.batch"
        self._plan_file, self._parts = f"{self._folder}/plan.json", f"{self._folder}/parts"
        self._plan: _Plan | None = None

    def open(self, plan: InputPlan) -> bool:
        """Begin the output of this input, or go on with it; whether it is finished already. Raises SkimError."""
        with storage_errors(self._url):
            self._fs.invalidate_cache()
            begun, exists = self._read_plan(), self._fs.exists(self._output)
            if begun is None and exists:
                raise SkimError(f"{self._url} exists already: remove it, or name another --output")
            if begun is None or (begun.finished and not exists):
                self._begin(plan)
                return False
            if begun.fingerprint != plan.fingerprint:
                old = f"{self._url} and {self._url}.batch" if exists else f"{self._url}.batch"
                raise SkimError(
                    f"{self._url} was begun with another input, or the input was changed since: go on with that one, "
                    f"name another --output, or remove {old} to start anew"
                )
            if begun.parts != len(plan.parts):
                raise SkimError(
                    f"{self._url} was begun by a version of Skim that cuts the input differently: finish it with that "
                    f"one, or remove {self._url}.batch to start anew"
                )
            self._plan = begun
            if begun.finished:
                self._remove_parts()
            return begun.finished

    def _begin(self, plan: InputPlan) -> None:
        self._remove_parts()
        self._fs.makedirs(self._parts, exist_ok=True)
        self._write_plan(_Plan(VERSION, plan.fingerprint, plan.rows, len(plan.parts)))

    def _read_plan(self) -> _Plan | None:
        if not self._fs.exists(self._plan_file):
            return None
        try:
            plan = msgspec.json.decode(self._fs.cat_file(self._plan_file), type=_Plan)
        except msgspec.MsgspecError as error:
            raise SkimError(f"{self._url}.batch is no journal that can be read ({error}): remove it") from None
        if plan.version != VERSION:
            raise SkimError(f"{self._url} was begun by another version of Skim: finish it with that one")
        return plan

    def _write_plan(self, plan: _Plan) -> None:
        write(self._fs, self._plan_file, [msgspec.json.encode(plan)])
        self._plan = plan

    def done(self) -> set[int]:
        """Indices of the parts that are written down."""
        with storage_errors(self._url):
            self._fs.invalidate_cache()
            # An object store has no empty folders.
            files = self._fs.ls(self._parts, detail=False) if self._fs.exists(self._parts) else []
            names = (str(file).rpartition("/")[2] for file in files)
            return {int(name.removesuffix(".jsonl")) for name in names if name.endswith(".jsonl")}

    def commit(self, part: Part, answers: Sequence[BatchAnswer]) -> None:
        """Write down the answers to `part`, in its order: all of them or, if killed meanwhile, none."""
        with storage_errors(self._url):
            write(self._fs, self._path(part), (msgspec.json.encode(answer) + b"\n" for answer in answers))

    def finish(self, parts: Sequence[Part]) -> Totals:
        """Join all parts to the output and drop them. Raises SkimError for a part that is not whole, and drops it."""
        assert self._plan is not None, "open() comes first"
        totals = Totals()
        with storage_errors(self._url):
            write(self._fs, self._output, self._joined(parts, totals), scratch=self._folder)
            self._write_plan(msgspec.structs.replace(self._plan, finished=True))
            self._remove_parts()
        return totals

    def _joined(self, parts: Sequence[Part], totals: Totals) -> Iterator[bytes]:
        for start in range(0, len(parts), READ_AHEAD):
            some = parts[start : start + READ_AHEAD]
            found = self._fs.cat_ranges([self._path(part) for part in some], 0, None, on_error="raise")
            for part, data in zip(some, found, strict=True):
                answers = _answers(data)
                if len(answers) != part.rows:
                    self._fs.rm(self._path(part))
                    raise SkimError(
                        f"{self._path(part)} held {len(answers)} of its {part.rows} rows (a full disk, or a machine "
                        "that went down) and was dropped: submit the batch again to have them asked again"
                    )
                totals.rows += part.rows
                totals.failed += sum(answer.failed for answer in answers)
                yield data

    def _path(self, part: Part) -> str:
        return f"{self._parts}/{part.index:08d}.jsonl"

    def _remove_parts(self) -> None:
        if self._fs.exists(self._parts):
            self._fs.rm(self._parts, recursive=True)


def _answers(data: bytes) -> list[BatchAnswer]:
    """The whole rows of a part, up to the first that is cut off or garbled."""
    answers: list[BatchAnswer] = []
    with suppress(msgspec.DecodeError):
        for line in data.splitlines(keepends=True):
            if line.endswith(b"\n"):
                answers.append(_ANSWER.decode(line))
    return answers
