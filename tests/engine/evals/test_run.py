"""`skim eval` on the demo pair's weights: a needle among distractors, the table of it, and pages of worse answers."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.results import keep_rates as results
from evals.run.failure_pages import INDEX
from evals.run.run import EvalSettings, run
from speculator_service import service
from speculator_service.engine import Scores, SpeculatorEngine
from speculator_service.reading import Reading
from speculator_service.service import scores_of
from tests.unit.cluster.explain.test_page import data_of

pytestmark = pytest.mark.nightly

MODELS = Path(__file__).parents[3] / "demo_models"
OPTIONS = {"enforce_eager": True, "max_model_len": 2048}
ALMOST_NOTHING, SOME = 0.03, 0.2


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explain") / "pages"


@pytest.fixture(scope="module")
def reversed_scores() -> Iterator[None]:
    """At the lowest keep rate, what matters least has the highest score."""

    async def scored(engine: SpeculatorEngine, reading: Reading, **more: Any) -> Scores:
        scores = await scores_of(engine, reading, **more)
        if reading.request.options.keep_rate != ALMOST_NOTHING:
            return scores
        return replace(scores, importance=scores.importance.max() - scores.importance)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(service, "scores_of", scored)
        yield


@pytest.fixture(scope="module")
def measured(pages: Path, reversed_scores: None) -> dict[str, Any]:
    settings = EvalSettings(
        str(MODELS / "target"), str(MODELS / "speculator"), keep_rates=(ALMOST_NOTHING, SOME, 1.0),
        tasks=("multi_key", "counting"), lengths=(1024,), samples=2, selectors=("speculator", "random"), style="plain",
        max_tokens=6, explain=pages, target_options=OPTIONS, speculator_options=OPTIONS,
    )  # fmt: skip
    return run(settings)


def cell(result: dict[str, Any], task: str, selector: str, keep_rate: float) -> dict[str, Any]:
    cells = result["cells"]
    [found] = [c for c in cells if (c["task"], c["selector"], c["keep_rate"]) == (task, selector, keep_rate)]
    return found


def test_the_demo_pair_finds_the_needle_and_random_chunks_do_not(measured: dict[str, Any]) -> None:
    assert cell(measured, "multi_key", "dense", 1.0)["score"] == 1
    assert cell(measured, "multi_key", "speculator", SOME)["score"] == 1
    assert cell(measured, "multi_key", "random", SOME)["score"] < 1
    assert cell(measured, "counting", "dense", 1.0)["score"] == 0, "the demo pair cannot count"
    assert 0.15 < cell(measured, "multi_key", "speculator", SOME)["kept"] < 0.3
    assert {example["dense"].strip().rstrip(".") for example in measured["examples"] if example["task"] == "multi_key"}


def test_the_table_says_what_was_measured(measured: dict[str, Any]) -> None:
    columns, rows = results.table(measured)
    assert columns == ["task", "tokens", "keep rate", "kept", "dense", "speculator", "random"]
    assert [row[:3] for row in rows] == [
        [task, "1024", rate] for task in ("multi_key", "counting") for rate in ("0.03", "0.2")
    ]
    assert rows[1][columns.index("speculator")] == "1.00 (0.34-1.00)"
    score = cell(measured, "multi_key", "random", SOME)["score"]
    assert rows[1][columns.index("random")] == f"{score:.2f}"
    what = results.describe(measured)
    random = -100 * (score - 1)
    assert "over the 1 tasks and lengths that the target can do" in what
    assert f"dense +0.0 to +0.0 points, against random chunks {random:+.1f} to {random:+.1f} points" in what
    assert measured["tasks"]["counting"].startswith("The bells of four places")


def test_pages_show_what_was_kept_and_the_evidence_that_was_not(measured: dict[str, Any], pages: Path) -> None:
    [first] = [s for s in measured["samples"] if s["task"] == "multi_key"][:1]
    scores = {(name, rate): score for name, rate, score, _ in first["scores"]}
    assert (scores["dense", 1.0], scores["speculator", ALMOST_NOTHING], scores["speculator", SOME]) == (1, 0, 1)
    files = sorted(file.name for file in pages.iterdir())
    assert files == [INDEX, "multi_key-1024-0-speculator-0.03.html", "multi_key-1024-1-speculator-0.03.html"]
    data = data_of((pages / files[1]).read_text())
    notes = dict(data["notes"])
    assert list(notes) == ["Question", "Expected", "Answer", "Dense answer", "Evidence"]
    assert notes["Expected"] in notes["Dense answer"]
    assert ": 0 of " in notes["Evidence"]
    assert notes["Question"] in "".join(piece[4] for piece in data["pieces"])
    assert all(name in (pages / INDEX).read_text() for name in files[1:])
    assert "explain" not in measured["settings"]
