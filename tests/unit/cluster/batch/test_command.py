"""`skim batch` as a user runs it, up to the start of Ray."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cluster.batch.conftest import row, write_rows

ROOT = Path(__file__).parents[4]


def test_the_example_is_in_order(skim) -> None:
    ran = skim("batch", "--dry-run", "--input", ROOT / "examples" / "batch.jsonl")
    assert ran.code == 0, ran.err
    assert "5 rows (2 x /v1/chat/completions, 1 x /v1/completions, 1 x /v1/responses, 1 x /v1/messages)" in ran.error


def test_a_dry_run_names_bad_rows_and_writes_nothing(skim, tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps(row("a")) + "\n{broken\n")
    ran = skim("batch", "--dry-run", "--input", file, "--output", tmp_path / "out.jsonl")
    assert ran.code == 1
    assert "line 2: the line is not valid JSON" in ran.error
    assert "1 rows cannot be sent" in ran.error
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "--output is missing"),
        (["--output", "o", "--endpoint", "http://x", "--config", "c"], "give either --endpoint or --config"),
        (["--output", "in.jsonl"], "in.jsonl already exists"),
        (["--output", "nosuch://x/y"], "neither a path nor a URL that fsspec knows"),
    ],
)
def test_mistakes_are_one_sentence(skim, tmp_path: Path, monkeypatch, words: list[str], message: str) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", 3)
    ran = skim("batch", "--input", "in.jsonl", *words)
    assert ran.code == 2
    assert message in ran.error
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("words", [["--dry-run"], ["--output", "out.jsonl"]])
def test_a_pipe_is_refused_before_ray_starts(skim, tmp_path: Path, monkeypatch, words: list[str]) -> None:
    monkeypatch.setattr("cluster.batch.job._endpoint", None)
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    ran = skim("batch", "--input", "pipe", *words)
    assert ran.code == 2
    assert "pipe is a pipe or a device" in ran.error
    assert [file.name for file in tmp_path.iterdir()] == ["pipe"]


@pytest.mark.parametrize("data", [b"{}", b"PK\x03\x04" + bytes(60)])
def test_an_input_that_is_no_text_is_refused_before_ray_starts(skim, tmp_path: Path, monkeypatch, data: bytes) -> None:
    monkeypatch.setattr("cluster.batch.job._endpoint", None)
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_bytes(data)
    ran = skim("batch", "--input", "in.jsonl", "--output", "out.jsonl")
    assert (ran.code, "in.jsonl is no text" in ran.error) == ((2, True) if b"\0" in data else (1, False))


def test_a_folder_of_ray_that_is_closed_is_named(skim, tmp_path: Path, monkeypatch) -> None:
    def init(**_: object) -> None:
        raise PermissionError(13, "Permission denied", f"{tmp_path}/.ray")

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("ray.init", init)
    words = ("--input", write_rows(tmp_path / "in.jsonl", 3), "--output", tmp_path / "out.jsonl")
    ran = skim("batch", *words)
    assert ran.code == 2
    assert "cannot start Ray on this machine: [Errno 13] Permission denied" in ran.error
    assert "write to HOME and /tmp" in ran.error
    monkeypatch.setattr("ray.init", lambda **_: 1 / 0)
    assert "cannot start Ray on this machine: division by zero" in skim("batch", *words).error


def test_a_missing_extra_is_named(skim, monkeypatch) -> None:
    monkeypatch.setattr("cluster.batch.job.EXTRA", ("openai", "no_such_package"))
    ran = skim("batch", "--input", "in.jsonl")
    assert ran.code == 2
    assert "batch jobs need no_such_package: install Skim with its extra `batch`" in ran.error


def test_repeated_custom_ids_are_refused(skim, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text("\n".join([json.dumps(row("a"))] * 2))
    ran = skim("batch", "--input", tmp_path / "in.jsonl", "--output", tmp_path / "out.jsonl")
    assert ran.code == 2
    assert "'a' in lines 1 and 2" in ran.error


def test_the_module_is_the_command() -> None:
    words = [sys.executable, "-m", "cluster.batch", "--dry-run", "--input", "examples/batch.jsonl"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "5 rows" in done.stderr
