"""docs/compatibility.md has the tables of tests/peer/results.json, and each difference there has a reason."""

import pytest

from tests.peer.__main__ import PAGE
from tests.peer.report import UNKNOWN, Outcomes, counts, differences, not_passed, read_results, results, tables
from tests.peer.suite import FILES, SYSTEMS

PASSED, FAILED = ["passed", ""], ["failed", "assert 1 == 2"]
OUTCOMES: Outcomes = {
    "stock": {
        "a.py::test_a[1]": PASSED,
        "a.py::test_b": PASSED,
        "b.py::test_c": FAILED,
        "b.py::test_d": ["skipped", ""],
    },
    "dense": {
        "a.py::test_a[1]": PASSED,
        "a.py::test_b": FAILED,
        "b.py::test_c": FAILED,
        "b.py::test_d": ["skipped", ""],
    },
    "forced": {
        "a.py::test_a[1]": PASSED,
        "a.py::test_b": FAILED,
        "b.py::test_c": PASSED,
        "b.py::test_d": ["skipped", ""],
    },
}


def test_the_page_has_the_tables() -> None:
    assert tables(read_results()) in PAGE.read_text()


def test_each_difference_has_a_reason() -> None:
    content = read_results()
    assert list(content["files"]) == list(FILES)
    reasons = [row["reason"] for part in ("differences", "not_passed") for row in content[part].values()]
    assert reasons
    assert UNKNOWN not in reasons


def test_what_differs_is_found() -> None:
    assert differences(OUTCOMES) == {
        "a.py::test_b": {"stock": "passed", "dense": "failed", "forced": "failed"},
        "b.py::test_c": {"stock": "failed", "dense": "failed", "forced": "passed"},
    }
    assert not_passed(OUTCOMES) == {"b.py::test_d": "skipped"}
    assert counts(OUTCOMES)["a.py"] == {
        "stock": {"passed": 2},
        "dense": {"failed": 1, "passed": 1},
        "forced": {"failed": 1, "passed": 1},
    }


@pytest.mark.parametrize("system", SYSTEMS)
def test_a_test_that_one_system_has_not_differs(system: str) -> None:
    fewer = {**OUTCOMES, system: {test: row for test, row in OUTCOMES[system].items() if test != "b.py::test_d"}}
    assert differences(fewer)["b.py::test_d"][system] == "none"


def test_known_reasons_stay_and_new_ones_are_asked_for() -> None:
    before = {"differences": {"a.py::test_b": {"reason": "known"}}, "not_passed": {}}
    content = results(OUTCOMES, before)
    assert [row["reason"] for row in content["differences"].values()] == ["known", UNKNOWN]
    assert "- known: `test_b`" in tables(content)
    assert "| `a.py` | 2 | 2 | 1 | 1 |" in tables(content)
