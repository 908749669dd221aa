"""A run of `skim bench agents` on mock engines: what each mode reads, the journal, and the table."""

import json
from dataclasses import replace

import pytest

from evals.agents import engines
from evals.agents.results import FIRST, LATER, counts, describe, groups, right, table
from evals.agents.run import AgentSettings, run
from evals.run.ask import InProcess
from kv_transfer.options import AUTO
from router.options.request import OFF
from skim_common.errors import SkimError
from tests.unit.evals.conftest import MODELS

SETTINGS = AgentSettings(
    str(MODELS / "target"), str(MODELS / "speculator"), families=("fact", "call"), turns=6, length=2000,
    conversations=1, engine="mock", target_options={"cache_tokens": 100_000},
)  # fmt: skip


@pytest.fixture(scope="module")
def journal(tmp_path_factory):
    return tmp_path_factory.mktemp("agents") / "journal.jsonl"


@pytest.fixture(scope="module")
def measured(journal):
    return run(replace(SETTINGS, journal=journal))


def shares(result, mode):
    """What the target read of each prompt."""
    return [
        read / sample["prompt"] for sample in result["samples"] for name, _, _, read in sample["scores"] if name == mode
    ]


def test_catch_up_makes_the_later_turns_dense(measured):
    assert [sample["task"] for sample in measured["samples"]] == ["fact"] * 4 + ["call"] * 4
    assert shares(measured, "dense") == [1.0] * 8
    assert all(share < 0.9 for share in shares(measured, "auto"))
    caught_up = shares(measured, "auto + catch-up")
    first = shares(measured, "auto")
    assert [caught_up[0], caught_up[4]] == [first[0], first[4]]
    assert caught_up[1:4] == caught_up[5:] == [1.0] * 3


def test_a_catch_up_that_does_not_happen_is_an_error(monkeypatch):
    """It would be a figure of something else."""
    one = replace(SETTINGS, families=("fact",))
    with pytest.raises(SkimError, match=r"were not caught up \(off;reason=no-room\)"):
        run(replace(one, target_options={"cache_tokens": 3000}))
    off = {**engines._PREFILL, engines.CAUGHT_UP: {"enabled": AUTO, "catch_up": OFF}}
    monkeypatch.setattr(engines, "_PREFILL", off)
    with pytest.raises(SkimError, match=r"were not caught up \(off;reason=disabled\)"):
        run(one)


def test_a_run_goes_on_from_its_journal(measured, journal, monkeypatch):
    """Only the conversation whose answers are cut off is asked again, without the dense answers that are there."""
    asked = []

    def counted(self, sample, mode):
        asked.append((sample.task, mode))
        return ask(self, sample, mode)

    ask = engines.AgentEngines._ask
    monkeypatch.setattr(engines.AgentEngines, "_ask", counted)
    lines = journal.read_text().splitlines(keepends=True)
    assert len(lines) == 1 + 8
    cut = journal.with_name("cut.jsonl")
    cut.write_text("".join(lines[:7]) + lines[7][:20])
    assert run(replace(SETTINGS, journal=cut))["samples"] == measured["samples"]
    assert {task for task, _ in asked} == {"call"}
    assert asked.count(("call", "dense")) == 2
    assert asked.count(("call", "auto")) == asked.count(("call", "auto + catch-up")) == 4

    monkeypatch.setattr(InProcess, "_pair", property(lambda _: pytest.fail("an engine started")))
    assert run(replace(SETTINGS, journal=cut))["samples"] == measured["samples"]


def sample(task, seed, *scores):
    """A sample whose answers have these scores, dense first; with the default half of the prompt is read."""
    modes = (("dense", 1.0, 1000), ("auto", 0.0, 500), ("auto + catch-up", 0.0, 1000))
    told = [[mode, rate, score, read] for (mode, rate, read), score in zip(modes, scores, strict=True)]
    return {"task": task, "family": task, "length": 1000, "seed": seed, "prompt": 1000, "dense": "", "scores": told}


def test_the_table_counts_right_answers(measured):
    samples = [sample("fact", "a", 1, 0, 1), sample("fact", "a", 1, 1, 1), sample("edit", "b", 0, 0, 0)]
    result = {**measured, "samples": samples}
    assert groups(result) == {"all turns": [0, 1, 2], "fact": [0, 1], "edit": [2], FIRST: [0, 2], LATER: [1]}
    assert right(result, "fact", ("auto", 0.0)) == (1, 2)
    assert counts(result, "fact") == "dense 2 of 2, auto 1, auto + catch-up 2"
    columns, rows = table(result)
    assert columns == ["turns", "n", "dense", "auto", "kept", "auto + catch-up", "kept"]
    assert rows[1] == ["fact", "2", "2", "1 (too few documents)", "0.50", "2 (no score differs)", "1.00"]
    assert "3 asked turns of 2 conversations" in describe(result)
    assert "Of the 3 prompts, *auto* runs 0 dense." in describe(result)


def test_an_unknown_family_is_one_sentence():
    with pytest.raises(SkimError, match="unknown family 'poem': choose from fact, correction, call, edit"):
        run(replace(SETTINGS, families=("poem",)))


def test_from_options_to_files(skim, tmp_path):
    file, plot, journal = (tmp_path / name for name in ("agents.json", "agents.png", "agents.jsonl"))
    pair = ("--target", MODELS / "target", "--speculator", MODELS / "speculator", "--engine", "mock")
    size = ("--families", "edit", "--conversations", 1, "--turns", 6, "--length", 2000)
    engine = ("--target-options", json.dumps({"cache_tokens": 100_000}))
    ran = skim("bench", "agents", *pair, *size, *engine, "--journal", journal, "--json", file, "--plot", plot)
    assert ran.code == 0, ran.err
    result = json.loads(file.read_text())
    assert [score[:2] for score in result["samples"][0]["scores"]] == [
        ["dense", 1.0],
        ["auto", 0.0],
        ["auto + catch-up", 0.0],
    ]
    assert str(tmp_path) not in json.dumps({name: value for name, value in result.items() if name != "command"})
    assert plot.stat().st_size > 0
    assert "Metric: the tests of the new function pass." in " ".join(ran.out.split())
