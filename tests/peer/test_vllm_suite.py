"""vLLM's own tests of its endpoint, on a stock server and on Skim: no outcome differs but for a known reason."""

import json
from pathlib import Path

import pytest

from tests.peer.report import Outcomes, counts, differences, read_results
from tests.peer.suite import FILES, SYSTEMS, prompts, run_suite
from tests.reference.pip import PipError

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(4 * 3600)]


@pytest.fixture(scope="module")
def outcomes(home: Path) -> Outcomes:
    try:
        return {system: run_suite(system, FILES, home) for system in SYSTEMS}
    except PipError as error:
        pytest.skip(f"the source of vLLM cannot be had: {error}")


def test_what_differs_from_a_stock_server_is_known(outcomes: Outcomes) -> None:
    known = {test: {system: row[system] for system in SYSTEMS} for test, row in read_results()["differences"].items()}
    causes = {test: [outcomes[system].get(test) for system in SYSTEMS] for test in differences(outcomes)}
    assert differences(outcomes) == known, json.dumps(causes, indent=1)


def test_the_counts_are_those_of_the_docs(outcomes: Outcomes) -> None:
    assert counts(outcomes) == read_results()["files"]


def test_each_system_ran_as_it_is_called(outcomes: Outcomes) -> None:
    """The control: a server that ran all prompts dense would pass the tests, too."""
    assert prompts("dense", "speculative") == 0
    assert prompts("dense", "dense") > 100
    assert prompts("forced", "speculative") > 30  # of the others, all is protected, or they ask for what runs dense
