"""Files that are replaced at once: a failed write leaves the old one, and nothing else."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.json_file import read_json, replace_text, write_json
from skim_common.errors import SkimError


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("fails", ["os.fsync", "os.replace"])
def test_a_full_disk_leaves_the_old_file_alone(tmp_path, monkeypatch, fails):
    file = tmp_path / "a.json"
    write_json(file, {"old": 1})
    monkeypatch.setattr(fails, full)
    with pytest.raises(SkimError, match=r"cannot write .*a\.json: No space left on device"):
        write_json(file, {"new": "x" * 100_000})
    assert read_json(file) == {"old": 1}
    assert list(tmp_path.iterdir()) == [file]


def test_the_disk_has_the_content_before_the_name(tmp_path, monkeypatch):
    synced, replace = [], os.replace
    monkeypatch.setattr("os.fsync", lambda number: synced.append(os.fstat(number).st_size))
    monkeypatch.setattr("os.replace", lambda *names: (synced.append("replaced"), replace(*names)))
    replace_text(tmp_path / "a", "four")
    assert synced == [4, "replaced"]


def test_permissions_and_links_stay(tmp_path):
    file, link = tmp_path / "a.json", tmp_path / "link.json"
    write_json(file, 1)
    file.chmod(0o640)
    link.symlink_to(file)
    write_json(link, 2)
    assert (read_json(file), file.stat().st_mode & 0o777, link.is_symlink()) == (2, 0o640, True)


def test_a_new_file_has_the_permissions_that_others_have(tmp_path):
    (tmp_path / "other").write_text("")
    write_json(tmp_path / "a.json", 1)
    assert (tmp_path / "a.json").stat().st_mode == (tmp_path / "other").stat().st_mode
    replace_text(tmp_path / "secret", "", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_a_device_is_written_to():
    write_json(Path(os.devnull), 1)
    assert not os.path.isfile(os.devnull)


def test_a_file_is_utf_8_whatever_the_locale_says(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("Grüße".encode())
    code = "import sys; from pathlib import Path; from cluster.json_file import read_text; "
    code += "print(sys.flags.utf8_mode, ascii(open(sys.argv[1]).encoding), ascii(read_text(Path(sys.argv[1]))))"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = subprocess.run(
        [sys.executable, "-c", code, file], env=environment, capture_output=True, text=True, check=True
    )
    assert ran.stdout.split() == ["0", "'ANSI_X3.4-1968'", r"'Gr\xfc\xdfe'"]
