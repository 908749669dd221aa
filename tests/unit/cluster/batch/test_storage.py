"""Paths and URLs, atomic writes, and errors of a storage."""

import os
from pathlib import Path

import pytest

from cluster.batch.storage import absolute, is_local, locate, shared_path, storage_errors, write
from skim_common.errors import SkimError


class CredentialsError(Exception):
    """An exception class of a storage driver."""


def test_only_relative_paths_are_taken_from_a_folder() -> None:
    folder = Path("/data")
    assert absolute("a/in.jsonl", folder) == "/data/a/in.jsonl"
    for url in ("/tmp/in.jsonl", "s3://bucket/in.jsonl", "memory://in.jsonl", "zip://in.jsonl::a.zip"):
        assert absolute(url, folder) == url
    assert absolute("~/in.jsonl", folder) == str(Path.home() / "in.jsonl")


def test_local_files_are_told_from_others() -> None:
    assert [is_local(url) for url in ("in.jsonl", "file:///in.jsonl", "memory://in.jsonl")] == [True, True, False]


def test_a_file_keeps_its_content_until_the_new_one_is_whole(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text("old")

    def broken():
        yield b"new"
        assert file.read_text() == "old"
        raise KeyboardInterrupt

    fs, path = locate(str(file))
    with pytest.raises(KeyboardInterrupt):
        write(fs, path, broken())
    assert file.read_text() == "old"
    write(fs, path, [b"new", b"er"])
    assert file.read_text() == "newer"


@pytest.mark.parametrize("fails", ["os.fsync", "shutil.move"])
def test_a_full_disk_leaves_no_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    def full(*_: object, **__: object) -> None:
        assert len(list(tmp_path.iterdir())) == 2
        raise OSError(28, "No space left on device")

    (tmp_path / "plan.json").write_text("old")
    monkeypatch.setattr(fails, full)
    fs, path = locate(str(tmp_path / "plan.json"))
    for _ in range(3):
        with pytest.raises(OSError, match="No space left"):
            write(fs, path, [b"new"])
        assert [file.name for file in tmp_path.iterdir()] == ["plan.json"]
    assert (tmp_path / "plan.json").read_text() == "old"


def test_an_error_leaves_no_temporary_object() -> None:
    fs, path = locate("memory://storage/out.jsonl")

    def broken():
        yield b"new"
        raise SkimError("a part is not complete")

    with pytest.raises(SkimError):
        write(fs, path, broken())
    assert fs.find("/storage") == []


def test_an_input_that_only_this_process_finds_is_named_for_all(tmp_path: Path) -> None:
    """As the shell's `< in.jsonl` makes it."""
    rows = tmp_path / "in.jsonl"
    rows.write_text("{}")
    with rows.open("rb") as file:
        assert shared_path(f"/dev/fd/{file.fileno()}") == str(rows)
    assert shared_path("memory://in.jsonl") == "memory://in.jsonl"
    assert shared_path(str(tmp_path / "none")) == str(tmp_path / "none")


@pytest.mark.parametrize("named", [True, False])
def test_a_pipe_is_refused(tmp_path: Path, named: bool) -> None:
    os.mkfifo(tmp_path / "pipe")
    ends = os.pipe()
    with pytest.raises(SkimError, match=r"is a pipe or a device.*: write it to a file"):
        shared_path(str(tmp_path / "pipe") if named else f"/dev/fd/{ends[0]}")
    for end in ends:
        os.close(end)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(2, "No such file", "part"), "part does not exist"),
        (FileNotFoundError("part"), "url does not exist"),
        (PermissionError(13, "Permission denied", "x"), "url: Permission denied"),
        (CredentialsError("no credentials"), "url: no credentials"),
        (SkimError("a sentence"), "a sentence"),
    ],
)
def test_a_storages_error_is_one_sentence(error: Exception, message: str) -> None:
    with pytest.raises(SkimError, match=f"^{message}$"), storage_errors("url"):
        raise error


def test_our_own_faults_keep_their_trace() -> None:
    with pytest.raises(TypeError), storage_errors("url"):
        raise TypeError


def test_a_missing_driver_is_named() -> None:
    with pytest.raises(SkimError, match=r"adl://x/y cannot be reached: .*adlfs"):
        locate("adl://x/y")
