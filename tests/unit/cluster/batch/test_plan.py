"""The input is read once and split into parts that cover each row once, with any blank lines between rows."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.batch import order
from cluster.batch import plan as planning
from cluster.batch.plan import read_part, read_plan
from skim_common.errors import SkimError
from tests.unit.cluster.batch.conftest import row, write_questions, write_rows

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
    lines = [line.rstrip(b"\n") for part in plan.parts for line in read_part(url, part)]
    read = [(row.line, line) for row, line in zip((r for p in plan.parts for r in p.sent), lines, strict=True)]
    assert read == wanted
    assert all(len(part.ranges()) == 1 for part in plan.parts)
    assert plan.rows == sum(part.rows for part in plan.parts) == len(wanted)
    assert plan.fingerprint == hashlib.sha256(data).hexdigest()
    assert [part.index for part in plan.parts] == list(range(len(plan.parts)))


def test_parts_are_bounded_in_rows_and_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = read_plan(write_rows(tmp_path / "in.jsonl", 4000))
    assert {part.rows for part in plan.parts} == {4000 // planning.PARTS}
    monkeypatch.setattr(planning, "MAX_BYTES", 300)
    plan = read_plan(write_rows(tmp_path / "in.jsonl", 100))
    assert max(sum(row.size for row in part.sent) for part in plan.parts) <= 300
    monkeypatch.setattr(planning, "MAX_BYTES", 10)
    plan = read_plan(write_rows(tmp_path / "in.jsonl", 20))
    assert [part.rows for part in plan.parts] == [1] * 20


def test_rows_of_a_document_are_in_one_part(tmp_path: Path) -> None:
    """Parts of at least eight rows: a part that is half full ends before a document that does not fit."""
    plan = read_plan(write_questions(tmp_path / "in.jsonl", 6, 5))
    assert [[(row.line - 1) % 6 for row in part.sent] for part in plan.parts] == [[i] * 5 for i in range(6)]
    assert {tuple(row.later for row in part.sent) for part in plan.parts} == {(4, 3, 2, 1, 0)}
    plan = read_plan(write_questions(tmp_path / "in.jsonl", 2, 20))
    assert [[(row.line - 1) % 2 for row in part.sent] for part in plan.parts] == [[0] * 8] * 2 + [
        [0] * 4, [1] * 8, [1] * 8, [1] * 4
    ]  # fmt: skip


def test_rows_are_ordered_within_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = write_questions(tmp_path / "in.jsonl", 3, 8)
    lines = Path(url).read_bytes().splitlines(keepends=True)
    monkeypatch.setattr(order, "WINDOW_ROWS", 10)
    monkeypatch.setattr(planning, "GAP_BYTES", 0)
    plan = read_plan(url)
    windows = [[row.line for part in plan.parts if part.window == window for row in part.sent] for window in range(3)]
    assert [sorted(window) for window in windows] == [[*range(1, 11)], [*range(11, 21)], [*range(21, 25)]]
    assert windows[0] == [1, 4, 7, 10, 2, 5, 8, 3, 6, 9]
    for part in plan.parts:
        assert read_part(url, part) == [lines[row.line - 1] for row in part.sent]
        assert sum(end - start for start, end in part.ranges()) == sum(row.size for row in part.sent)


def test_rows_near_each_other_are_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = write_questions(tmp_path / "in.jsonl", 3, 8)
    assert [len(part.ranges()) for part in read_plan(url).parts] == [1, 1, 1]
    monkeypatch.setattr(planning, "GAP_BYTES", 0)
    assert [len(part.ranges()) for part in read_plan(url).parts] == [8, 8, 8]


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
    plan = read_plan(write_questions(file, 3, 8))
    file.write_text(file.read_text()[:-20])
    with pytest.raises(SkimError, match=r"changed during the job \(part 2\)"):
        read_part(str(file), plan.parts[2])


ROW = json.dumps(row("a", prompt="a text that is long enough to be packed")).encode() + b"\n"


@pytest.mark.parametrize(
    "data",
    [gzip.compress(ROW * 3), gzip.compress(ROW) + gzip.compress(ROW * 2), gzip.compress(ROW * 3) + bytes(512)],
    ids=["one member", "two members", "padded"],
)
def test_a_gzip_file_is_known_by_its_first_bytes(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(data)
    with pytest.raises(SkimError, match=r"twice: 'a' in lines 1 and 2, 'a' in lines 1 and 3"):
        read_plan(str(tmp_path / "in.jsonl"))


def test_the_plan_of_a_packed_file_is_that_of_its_rows(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    write_rows(rows, 100)
    (packed := tmp_path / "in").write_bytes(gzip.compress(rows.read_bytes()))
    plan, same = read_plan(str(rows)), read_plan(str(packed))
    assert (plan.packed, same.packed) == (False, True)
    assert (same.fingerprint, same.parts) == (plan.fingerprint, plan.parts)


@pytest.mark.parametrize(
    "data",
    [
        bz2.compress(ROW),
        lzma.compress(ROW),
        b"(\xb5/\xfd\x04\x00" + ROW,
        ROW.decode().encode("utf-16"),
        ROW.decode().encode("utf-16-le"),
        gzip.compress(gzip.compress(ROW)),
        gzip.compress(b"in.jsonl" + bytes(504) + ROW),
        bytes(range(255, 0, -1)) * 8,
        b"{" + bytes(2000),
    ],
    ids=["bz2", "xz", "zstd", "utf-16", "utf-16 without a mark", "gzip twice", "tar.gz", "no text", "zeros"],
)
def test_other_formats_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "in.jsonl").write_bytes(data)
    with pytest.raises(SkimError, match=r"in\.jsonl is neither text nor gzip: it must hold one JSON object per line"):
        read_plan(str(tmp_path / "in.jsonl"))


@pytest.mark.parametrize("text", ["\ufeff", "garbage\n", '{"x": "\ud7ff"}\n', "é" * 3000 + "\n", "\x01\n"])
def test_text_with_unusable_rows_is_text(tmp_path: Path, text: str) -> None:
    (tmp_path / "in.jsonl").write_bytes(text.encode() + ROW + b'{"custom_id": "\xff"}\n')
    assert read_plan(str(tmp_path / "in.jsonl")).unusable == 1 + (text != "\ufeff")


@pytest.mark.parametrize(
    "damage",
    [lambda data: data[:-20], lambda data: data[:-6] + bytes(6), lambda data: data[:60] + b"damage" + data[66:]],
    ids=["cut off", "wrong sum", "wrong bytes"],
)
def test_a_damaged_gzip_file_is_one_sentence(tmp_path: Path, damage: Any) -> None:
    (tmp_path / "in.jsonl").write_bytes(
        damage(gzip.compress(b"".join(os.urandom(30).hex().encode() for _ in range(99))))
    )
    with pytest.raises(SkimError, match=r"in\.jsonl.*(ends too soon|CRC|decompressing|length)"):
        read_plan(str(tmp_path / "in.jsonl"))
