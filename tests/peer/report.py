"""What became of vLLM's tests: counts by file, and the tests whose outcome on Skim is not that of a stock server."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.peer.suite import SYSTEMS

RESULTS = Path(__file__).with_name("results.json")
UNKNOWN = "?"
"""A reason that nobody wrote yet."""

Outcomes = Mapping[str, Mapping[str, Sequence[str]]]
"""By system and test: the outcome, and the first line of its cause."""


def counts(outcomes: Outcomes) -> dict[str, dict[str, dict[str, int]]]:
    """By file, system and outcome: how many tests."""
    files = dict.fromkeys(test.partition("::")[0] for test in outcomes[SYSTEMS[0]])
    return {file: {system: _of_file(file, outcomes[system]) for system in SYSTEMS} for file in files}


def _of_file(file: str, outcomes: Mapping[str, Sequence[str]]) -> dict[str, int]:
    found = Counter(outcome for test, (outcome, _) in outcomes.items() if test.partition("::")[0] == file)
    return dict(sorted(found.items()))


def differences(outcomes: Outcomes) -> dict[str, dict[str, str]]:
    """By test and system the outcome, of each test that has not the same one on all systems."""
    tests = dict.fromkeys(test for system in SYSTEMS for test in outcomes[system])
    found = {test: {system: outcomes[system].get(test, ("none",))[0] for system in SYSTEMS} for test in tests}
    return {test: row for test, row in found.items() if len(set(row.values())) > 1}


def not_passed(outcomes: Outcomes) -> dict[str, str]:
    """The outcome of each test that has the same one on all systems, and does not pass."""
    same = outcomes[SYSTEMS[0]].keys() - differences(outcomes).keys()
    return {test: row[0] for test, row in outcomes[SYSTEMS[0]].items() if test in same and row[0] != "passed"}


def results(outcomes: Outcomes, before: Mapping[str, Any]) -> dict[str, Any]:
    """The content of RESULTS. before: the earlier one, whose reasons stay."""
    reasons = {
        test: row["reason"] for part in ("differences", "not_passed") for test, row in before.get(part, {}).items()
    }
    return {
        "files": counts(outcomes),
        "differences": {
            test: {**row, "reason": reasons.get(test, UNKNOWN)} for test, row in differences(outcomes).items()
        },
        "not_passed": {
            test: {"outcome": outcome, "reason": reasons.get(test, UNKNOWN)}
            for test, outcome in not_passed(outcomes).items()
        },
    }


def tables(content: Mapping[str, Any]) -> str:
    """The part of docs/compatibility.md that is made of RESULTS."""
    lines = [
        "| file of vLLM's `tests/entrypoints` | tests | stock passes | Skim dense | Skim speculative |",
        "|---|---|---|---|---|",
    ]
    files = content["files"]
    for file, row in files.items():
        lines.append(f"| `{file}` | {_cells(row)} |")
    total = {system: sum((Counter(row[system]) for row in files.values()), Counter()) for system in SYSTEMS}
    lines += [f"| all | {_cells(total)} |", "", "What differs:", ""]
    lines += _by_reason({test: row["reason"] for test, row in content["differences"].items()})
    lines += ["", "What does not pass on any of the three:", ""]
    lines += _by_reason({test: row["reason"] for test, row in content["not_passed"].items()})
    return "\n".join(lines) + "\n"


def _cells(row: Mapping[str, Mapping[str, int]]) -> str:
    return " | ".join(
        str(number) for number in (sum(row[SYSTEMS[0]].values()), *(row[s].get("passed", 0) for s in SYSTEMS))
    )


def _by_reason(reasons: Mapping[str, str]) -> list[str]:
    """A line for each reason, with its tests; one name for all parameters of a test."""
    names: dict[str, dict[str, None]] = {}
    for test, reason in reasons.items():
        names.setdefault(reason, {})[test.rpartition("::")[2].partition("[")[0]] = None
    return [f"- {reason}: {', '.join(f'`{name}`' for name in found)}" for reason, found in names.items()]


def read_results() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(RESULTS.read_text())
    return content
