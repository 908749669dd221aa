"""The program that runs the rings: a ring that fails keeps no other from running, and the table and status say so."""

import re
import sys
from pathlib import Path

import pytest

from tests import rings
from tests.rings import NIGHTLY, PUSH, Result, Ring, run, table

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rings, "REPORTS", tmp_path / "rings")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # plugins take longer to load than the tests to run


def programs(*codes: str) -> Ring:
    return Ring("programs", tuple((sys.executable, "-c", code) for code in codes))


def ring_of(folder: Path, source: str) -> Ring:
    """A ring of the tests in `source`, with neither this repository's settings nor its conftest."""
    folder.mkdir()
    (folder / "test_it.py").write_text(source)
    command = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(folder))
    return Ring("tests", (command,), is_pytest=True)


def ran(found: dict[str, Ring]) -> tuple[int, list[list[str]]]:
    """The exit status, and the words of each line of the table."""
    said: list[str] = []
    status = run(list(found), found, print_line=said.append)
    return status, [line.split() for line in said[-1].strip().splitlines()]


def test_rings_after_a_failing_one_run_too(tmp_path: Path) -> None:
    source = "import pytest\ndef test_a(): pass\ndef test_b(): assert False\ndef test_c(): pytest.skip()\n"
    late = tmp_path / "late"
    status, lines = ran({
        "red": ring_of(tmp_path / "red", source),
        "broken": ring_of(tmp_path / "broken", "def test_a(there_is_no_such_fixture): pass\n"),
        "mixed": programs("raise SystemExit(3)", "pass"),
        "late": programs(f"open({str(late)!r}, 'w')"),
    })  # fmt: skip
    assert status == 1
    assert late.exists()
    assert lines[0] == ["ring", "passed", "failed", "skipped", "minutes"]
    assert [line[:4] for line in lines[1:]] == [
        ["red", "1", "1", "1"],
        ["broken", "0", "1", "0"],
        ["mixed", "1", "1", "0"],
        ["late", "1", "0", "0"],
        ["all", "3", "3", "1"],
    ]


def test_all_green(tmp_path: Path) -> None:
    """The control."""
    status, lines = ran({"a": ring_of(tmp_path / "a", "def test_a(): pass\n"), "b": programs("pass")})
    assert status == 0
    assert [len(line) for line in lines] == [5] * 4, "no remark"


@pytest.mark.parametrize(
    ("source", "remark"),
    [
        ("", "ran no test"),
        ("import os\ndef test_a(): os._exit(0)\n", "ran no test"),
        ("import os, atexit\natexit.register(os._exit, 2)\ndef test_a(): pass\n", "ended with an error"),
        ("this is no Python\n", ""),
    ],
    ids=["nothing is collected", "pytest dies", "a bad end after good tests", "an import fails"],
)
def test_a_ring_that_shows_nothing_fails(tmp_path: Path, source: str, remark: str) -> None:
    status, lines = ran({"dark": ring_of(tmp_path / "dark", source)})
    assert status == 1
    assert " ".join(lines[1][5:]) == remark


def test_a_report_of_an_earlier_run_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "rings").mkdir()
    (tmp_path / "rings" / "gone.xml").write_text('<testsuites><testsuite tests="5" /></testsuites>')
    assert ran({"gone": Ring("gone", ((sys.executable, "-c", ""),), is_pytest=True)})[0] == 1


def test_an_interrupt_leaves_a_table_and_a_status(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ring, "run", interrupted)
    status, lines = ran({"a": programs("pass"), "b": programs("pass")})
    assert (status, [line[0] for line in lines[1:]]) == (1, ["a", "b", "all"])


def test_minutes_are_added() -> None:
    assert table([Result("a", minutes=1.25), Result("b", minutes=2.5)]).splitlines()[-1].split()[-1] == "3.8"


def test_make_runs_every_ring() -> None:
    """Each push and each night; and the names of a push are targets of their own."""
    make = (ROOT / "Makefile").read_text()
    recipes = [words.split() for words in re.findall(r"^\t@\$\(RINGS\) (.*)$", make, re.M)]
    assert list(PUSH) in recipes
    assert ["--night", *NIGHTLY] in recipes
    assert all([name] in recipes for name in PUSH)
