"""A run may be killed at any step: no row is lost or doubled, and no finished part is sent again."""

import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.batch import journal as journals
from cluster.batch.journal import Journal
from cluster.batch.rows import BatchAnswer, InputPlan, Part, Response, RowFault, read_part, read_plan
from skim_common.errors import SkimError
from tests.unit.cluster.batch.conftest import write_rows
from tests.unit.cluster.batch.mortal_storage import STAGES, Killed, MortalStorage

ROWS = 40
MEMORY = fsspec.filesystem("memory")

_names = itertools.count()


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("batch") / "in.jsonl", ROWS)


@pytest.fixture(scope="module")
def plan(source: str) -> InputPlan:
    plan = read_plan(source)
    assert [part.rows for part in plan.parts] == [8] * 5
    return plan


def answers_to(source: str, part: Part) -> list[BatchAnswer]:
    """Every fifth row is an error; the others answer with their line number."""
    fault = RowFault("timeout", "too long")
    names = [(number, json.loads(line)["custom_id"]) for number, line in read_part(source, part)]
    return [
        BatchAnswer(f"b{n}", i, Response(200, i, {"n": n}) if n % 5 else None, None if n % 5 else fault)
        for n, i in names
    ]


class Batch:
    """Runs of one batch over its own storage. asked: how often each part was sent, over all runs."""

    def __init__(self, source: str, plan: InputPlan) -> None:
        self._source, self._plan = source, plan
        self.url = f"memory://mortal-{next(_names)}/out.jsonl"
        self.asked = dict.fromkeys(range(len(plan.parts)), 0)
        self.steps = 0

    def run(self, life: int = 10**6, stage: str = "before", seed: int = 0) -> bool:
        """One run that dies after `life` steps. Returns whether it finished. seed: of the order of the parts."""
        journal = Journal(self.url)
        journal._fs = storage = MortalStorage(MEMORY, life, stage)
        try:
            if not journal.open(self._plan):
                self._finish(journal, Random(seed))
        except Killed:
            return False
        finally:
            self.steps = life - storage.left
        return True

    def _finish(self, journal: Journal, random: Random) -> None:
        done = journal.done()
        left = [part for part in self._plan.parts if part.index not in done]
        random.shuffle(left)
        for part in left:
            self.asked[part.index] += 1
            journal.commit(part, answers_to(self._source, part))
        assert journal.finish(self._plan.parts) == ROWS // 5

    def check(self, runs: int) -> None:
        """The output is complete and in order, nothing else is left, and each kill cost at most one part."""
        rows = [json.loads(line) for line in MEMORY.cat_file(self.url).splitlines()]
        assert [row["custom_id"] for row in rows] == [f"r{i}" for i in range(ROWS)]
        files = {name.rpartition("/")[2] for name in MEMORY.find(self.url.rpartition("/")[0])}
        assert {name for name in files if not name.endswith(".tmp")} == {"out.jsonl", "plan.json"}
        assert sum(self.asked.values()) <= len(self.asked) + runs - 1
        MEMORY.rm(self.url.rpartition("/")[0], recursive=True)


@pytest.mark.parametrize("stage", STAGES)
def test_killed_once_at_every_step(source: str, plan: InputPlan, stage: str) -> None:
    whole = Batch(source, plan)
    assert whole.run()
    assert whole.steps > 5 * len(plan.parts)
    for life in range(whole.steps):
        batch = Batch(source, plan)
        assert not batch.run(life, stage)
        assert batch.run()
        batch.check(runs=2)


@given(kills=st.lists(st.tuples(st.integers(0, 60), st.sampled_from(STAGES), st.integers()), max_size=8))
def test_killed_again_and_again(source: str, plan: InputPlan, kills: list[tuple[int, str, int]]) -> None:
    batch = Batch(source, plan)
    for life, stage, seed in kills:
        batch.run(life, stage, seed)
    assert batch.run()
    batch.check(runs=len(kills) + 1)


def test_without_the_journal_rows_are_asked_again(
    source: str, plan: InputPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: without `done`, the work of a killed run is repeated."""
    batch = Batch(source, plan)
    batch.run(life=30)
    assert sum(batch.asked.values()) > 2
    monkeypatch.setattr(Journal, "done", lambda self: set())
    assert batch.run()
    with pytest.raises(AssertionError):
        batch.check(runs=2)


def test_parts_that_do_not_appear_at_once_are_found_out(
    source: str, plan: InputPlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a part that is written in place can be cut off. It is then removed and never joined."""

    def in_place(fs: Any, path: str, chunks: Any, *, scratch: str | None = None) -> None:
        with fs.open(path, "wb") as file:
            for chunk in chunks:
                file.write(chunk)

    batch = Batch(source, plan)
    with monkeypatch.context() as broken:
        broken.setattr(journals, "write", in_place)
        assert not batch.run(life=10, stage="midst")
    with pytest.raises(SkimError, match=r"held \d of its \d rows .* submit the batch again"):
        batch.run()
    assert batch.run()
    batch.check(runs=3)


def test_a_finished_batch_stays_finished(source: str, plan: InputPlan) -> None:
    batch = Batch(source, plan)
    assert batch.run()
    asked = dict(batch.asked)
    assert batch.run()
    assert batch.asked == asked
    MEMORY.rm(batch.url)
    assert batch.run(), "without its output the batch starts again"
    assert sum(batch.asked.values()) == 2 * len(plan.parts)


def test_another_input_is_refused(source: str, plan: InputPlan, tmp_path: Path, memory_url: str) -> None:
    assert not Journal(memory_url).open(plan)
    other = read_plan(write_rows(tmp_path / "other.jsonl", ROWS + 1))
    with pytest.raises(SkimError, match="was begun with another input, or the input has changed since"):
        Journal(memory_url).open(other)
    assert not Journal(memory_url).open(plan)


def test_the_output_of_others_is_left_alone(plan: InputPlan, memory_url: str) -> None:
    MEMORY.pipe(memory_url, b"precious")
    with pytest.raises(SkimError, match="already exists: remove it, or give another --output"):
        Journal(memory_url).open(plan)
    assert MEMORY.cat_file(memory_url) == b"precious"
    with pytest.raises(SkimError, match="must not contain the characters"):
        Journal("memory://bucket/out*.jsonl")


@pytest.mark.parametrize("content", [b"{", b"{}", b'{"version": 1, "fingerprint": "", "rows": 1, "parts": 1}'])
def test_a_journal_that_cannot_be_read_is_one_sentence(plan: InputPlan, memory_url: str, content: bytes) -> None:
    MEMORY.pipe(f"{memory_url}.batch/plan.json", content)
    with pytest.raises(SkimError, match=r"is not a readable journal|another version of Skim"):
        Journal(memory_url).open(plan)


def test_local_outputs_get_their_folder(plan: InputPlan, source: str, tmp_path: Path) -> None:
    output = tmp_path / "new" / "out.jsonl"
    journal = Journal(str(output))
    assert not journal.open(plan)
    for part in plan.parts:
        journal.commit(part, answers_to(source, part))
    journal.finish(plan.parts)
    assert len(output.read_text().splitlines()) == ROWS
    assert [file.name for file in (tmp_path / "new" / "out.jsonl.batch").iterdir()] == ["plan.json"]


def test_what_others_put_beside_the_parts_is_no_part(plan: InputPlan, memory_url: str) -> None:
    journal = Journal(memory_url)
    journal.open(plan)
    for name in ("notes.jsonl", "00000000.jsonl.bak", "00000001.jsonl"):
        MEMORY.pipe(f"{memory_url}.batch/parts/{name}", b"")
    assert journal.done() == {1}


def test_of_two_jobs_the_later_one_finds_the_batch_finished(plan: InputPlan, source: str, memory_url: str) -> None:
    one, other = Journal(memory_url), Journal(memory_url)
    for journal in (one, other):
        assert not journal.open(plan)
        for part in plan.parts:
            journal.commit(part, answers_to(source, part))
    assert one.finish(plan.parts) == ROWS // 5
    assert other.finish(plan.parts) is None
    assert len(MEMORY.cat_file(memory_url).splitlines()) == ROWS
