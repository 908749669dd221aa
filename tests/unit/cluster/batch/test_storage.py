"""Paths and URLs, atomic writes, and errors of a storage."""

from pathlib import Path

import pytest

from cluster.batch.storage import absolute, is_local, locate, storage_errors, write
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
