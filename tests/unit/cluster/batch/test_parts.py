"""The input is read once and split into parts that cover each row once, with any blank lines between rows."""

import gzip
import hashlib
import json
from pathlib import Path

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.batch import rows as planning
from cluster.batch.rows import read_part, read_plan
from skim_common.errors import SkimError
from tests.unit.cluster.batch.conftest import row, write_rows

LINES = st.one_of(
    st.just("\n"),
    st.just("  \r\n"),
    st.just("{broken\n"),
    st.builds(lambda text: json.dumps({"x": text}, ensure_ascii=False) + "\n", st.text(max_size=80)),
    st.builds(lambda text: json.dumps({"x": text}) + "\r\n", st.text(max_size=80)),
)


@given(lines=st.lists(LINES, max_size=60), bare_end=st.booleans())
def test_parts_cover_every_row_once(lines: list[str], bare_end: bool) -> None:
    data = "".join([*lines, "{}" if bare_end else "{}\n"]).encode()
    fsspec.filesystem("memory").pipe("/plan/in.jsonl", data)
    url = "memory://plan/in.jsonl"
    plan = read_plan(url)
    wanted = [(i, line) for i, line in enumerate(data.split(b"\n"), 1) if line.strip()]
    assert [row for part in plan.parts for row in read_part(url, part)] == wanted
    assert plan.rows == sum(part.rows for part in plan.parts) == len(wanted)
    assert plan.fingerprint == hashlib.sha256(data).hexdigest()
    assert [part.index for part in plan.parts] == list(range(len(plan.parts)))


def test_parts_are_bounded_in_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(write_rows(tmp_path / "in.jsonl", 4000))
    assert {part.rows for part in plan.parts} == {4000 // planning.PARTS}
    monkeypatch.setattr(planning, "MAX_BYTES", 300)
    plan = read_plan(write_rows(tmp_path / "in.jsonl", 100))
    assert max(part.end - part.start for part in plan.parts) <= 300
    monkeypatch.setattr(planning, "MAX_BYTES", 10)
    plan = read_plan(write_rows(tmp_path / "in.jsonl", 20))
    assert [part.rows for part in plan.parts] == [1] * 20


def test_repeated_custom_ids_are_refused_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    names = ["a", "b", "a", "c", "b"]
    file.write_text("\n".join(json.dumps(row(name)) for name in names))
    with pytest.raises(SkimError, match=r"uses a custom_id twice: 'a' in lines 1 and 3, 'b' in lines 2 and 5; give"):
        read_plan(str(file))
    file.write_text("\n".join(json.dumps(row("a")) for _ in range(20)))
    with pytest.raises(SkimError, match="and 14 more; give every row its own custom_id"):
        read_plan(str(file))


def test_unusable_rows_are_counted_and_named(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(row("a")) + "\n\n{broken\n" + json.dumps({**row("b"), "method": "PUT"}))
    plan = read_plan(str(file))
    assert (plan.rows, plan.unusable, plan.urls.total()) == (3, 2, 1)
    assert plan.problems[0].startswith("line 3: the line is not valid JSON")
    assert plan.problems[1] == "line 4: method must be POST, not 'PUT'"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere.jsonl", "nowhere.jsonl does not exist"),
        ("memory://nowhere/in.jsonl", "does not exist"),
        ("nosuch://bucket/in.jsonl", "neither a path nor a URL that fsspec knows"),
        (".", "Is a directory"),
    ],
)
def test_an_input_that_cannot_be_read_is_one_sentence(url: str, message: str) -> None:
    with pytest.raises(SkimError, match=message):
        read_plan(url)


def test_an_input_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n  \n")
    with pytest.raises(SkimError, match="has no rows: it must hold one JSON object per line"):
        read_plan(str(tmp_path / "in.jsonl"))


def test_an_input_that_changes_under_the_job_is_noticed(tmp_path: Path) -> None:
    file = Path(write_rows(tmp_path / "in.jsonl", 20))
    plan = read_plan(str(file))
    file.write_text(file.read_text().replace("r3", "x3"))
    with pytest.raises(SkimError, match=r"changed during the job \(part 0\)"):
        read_part(str(file), plan.parts[0])
    read_part(str(file), plan.parts[1])
    plan = read_plan(str(file))
    file.write_text(file.read_text()[:-20])
    with pytest.raises(SkimError, match=r"changed during the job \(part 2\)"):
        read_part(str(file), plan.parts[2])


ROW = json.dumps(row("a", prompt="a text that is long enough to be packed")).encode() + b"\n"


@pytest.mark.parametrize(
    "data",
    [gzip.compress(ROW), ROW.decode().encode("utf-16"), ROW.decode().encode("utf-16-le"), b"{" + bytes(2000)],
    ids=["gzip", "utf-16", "utf-16 without a mark", "zeros"],
)
def test_what_is_no_text_is_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(data)
    with pytest.raises(SkimError, match=r"in\.jsonl is no text: it must hold one JSON object per line"):
        read_plan(str(tmp_path / "in.jsonl"))


@pytest.mark.parametrize("text", ["\ufeff", "garbage\n", '{"x": "\ud7ff"}\n', "é" * 3000 + "\n", "\x01\n"])
def test_text_with_unusable_rows_is_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(text.encode() + ROW + b'{"custom_id": "\xff"}\n')
    assert read_plan(str(tmp_path / "in.jsonl")).unusable == 1 + (text != "\ufeff")
