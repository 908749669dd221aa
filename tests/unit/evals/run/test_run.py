"""A whole run of `skim eval` with engines in this process, its table and its plot."""

import json
from dataclasses import replace

import pytest

from evals.results import keep_rates as results
from evals.run.ask import InProcess
from evals.run.run import EvalSettings, run
from skim_common.errors import SkimError
from tests.unit.evals.conftest import MODELS

PAIR = {"target": str(MODELS / "target"), "speculator": str(MODELS / "speculator")}
SETTINGS = EvalSettings(
    **PAIR, keep_rates=(0.2, 1.0), tasks=("single_needle", "counting"), lengths=(1024,), samples=2, style="plain",
    engine="mock", max_tokens=8,
)  # fmt: skip


def cell(result, task, selector, keep_rate=0.2):
    [found] = [c for c in result["cells"] if (c["task"], c["selector"], c["keep_rate"]) == (task, selector, keep_rate)]
    return found


def test_every_selector_is_measured_on_every_prompt():
    seen = []
    result = run(SETTINGS, lambda what, done: seen.append(done))
    assert len(result["cells"]) == 2 * (1 + len(result["selectors"]))
    assert {c["n"] for c in result["cells"]} == {2}
    assert seen[-1] == 1
    assert "wrong origin" not in result["selectors"], "only the vLLM target can decode from another position"
    assert str(MODELS) not in json.dumps(result)


def test_equal_prompts_are_answered_once(monkeypatch):
    """The guard sends a counting question dense."""
    asked = []
    answer = InProcess._answer

    async def counted(self, kept, *more):
        asked.append(kept)
        return await answer(self, kept, *more)

    monkeypatch.setattr(InProcess, "_answer", counted)
    selectors = ("speculator", "auto + guard")
    result = run(replace(SETTINGS, tasks=("counting",), samples=1, selectors=selectors, seed=1))
    assert [kept.context_length == kept.token_ids.size for kept in asked] == [True, False]
    guarded = cell(result, "counting", "auto + guard", 0.0)
    assert (guarded["kept"], guarded["score"]) == (1, cell(result, "counting", "dense", 1.0)["score"])


def test_a_run_repeats_itself():
    assert run(SETTINGS)["cells"] == run(SETTINGS)["cells"]
    assert run(SETTINGS)["examples"] != run(replace(SETTINGS, seed=1))["examples"]


def test_the_plot_is_drawn(tmp_path):
    from benchmarks.report import plots

    result = run(SETTINGS)
    results.plot(result, tmp_path / "eval.png")
    assert plots.source_of(tmp_path / "eval.png") == plots.digest(result)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculator": None}, "give the pair by --target and --speculator"),
        ({"endpoint": "http://127.0.0.1:1"}, "give the pair by --target and --speculator"),
        ({"keep_rates": (0.1, 2.0)}, r"keep rates must be in \(0, 1\], not 2"),
        ({"tasks": ("juggling",)}, "unknown task 'juggling'"),
        ({"lengths": (500,)}, "would run dense"),
        ({"selectors": ("speculator", "dice")}, "unknown selector 'dice'"),
        ({"timed": 1, "turns": 2}, "--timed needs engines in this process"),
        ({"engine": "abacus"}, "unknown speculator engine 'abacus'"),
        ({"target": "nowhere"}, "nowhere"),
    ],
)
def test_a_wrong_setting_is_one_sentence(change, message):
    with pytest.raises(SkimError, match=message):
        run(replace(SETTINGS, **change))
