"""What requirements/install.sh prints; Python and pip are stood in for by a script."""

import subprocess
from pathlib import Path

import pytest

INSTALL = Path(__file__).parents[3] / "requirements" / "install.sh"

PYTHON = """#!/bin/sh
case "$*" in
    *version_info*) echo {version} ;;
    *"venv --without-pip"*) for venv in "$@"; do :; done; mkdir -p "$venv/bin" ;;
    *"pip --version"*) exit {no_pip} ;;
    *{fails}*) echo "WARNING: noise" >&2; echo "ERROR: no such package" >&2; exit 1 ;;
    *) echo "WARNING: noise" >&2; echo "Collecting $*" ;;
esac
"""


def install(tmp_path: Path, fails: str = "nothing", version: str = "3.11", no_pip: int = 0):
    """Run the script with a Python whose pip fails if its arguments contain `fails`."""
    python = tmp_path / "python"
    python.write_text(PYTHON.format(fails=fails, version=version, no_pip=no_pip))
    python.chmod(0o700)
    return subprocess.run([INSTALL, python, tmp_path / "venv"], capture_output=True, text=True)


def test_pips_output_is_in_the_log_whose_name_is_printed_once(tmp_path: Path) -> None:
    ran, log = install(tmp_path), tmp_path / "venv" / "install.log"
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count(str(log)) == 1
    assert ran.stdout.splitlines()[1:] == ["PyTorch ...", "The other packages ...", "Skim ..."]
    assert log.read_text().count("WARNING: noise") == log.read_text().count("Collecting") == 3


@pytest.mark.parametrize("fails", ["--requirement", "--editable", "torch=="])
def test_the_end_of_the_log_is_shown_when_pip_fails(tmp_path: Path, fails: str) -> None:
    ran, log = install(tmp_path, fails), tmp_path / "venv" / "install.log"
    assert ran.returncode == 1
    assert "ERROR: no such package\n" in ran.stderr
    assert ran.stderr.splitlines()[-1].endswith(f" The lines above are the last of {log}.")
    assert ("TORCH_INDEX" in ran.stderr.splitlines()[-1]) is (fails == "torch==")


def test_torch_is_taken_from_its_own_index_if_pip_does_not_find_it(tmp_path: Path) -> None:
    fails = '"install --no-deps --progress-bar off --only-binary :all: torch"'
    ran, log = install(tmp_path, fails), tmp_path / "venv" / "install.log"
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "pip does not find torch==" in ran.stdout
    assert "--extra-index-url" in log.read_text()


@pytest.mark.parametrize(
    ("python", "told"),
    [({"version": "3.12"}, "Python 3.11 is needed, but "), ({"no_pip": 1}, "pip is needed, but ")],
    ids=["another Python", "no pip"],
)
def test_what_is_missing_is_said_in_one_line(tmp_path: Path, python: dict, told: str) -> None:
    ran = install(tmp_path, **python)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert ran.stderr.startswith(told)
    assert ran.stderr.count("\n") == 1
