"""`skim bench forecast`: the order of its prompts, what each client sends, how a run goes on, and what is shown."""

import json
from dataclasses import asdict, replace

import aiohttp
import pytest

from benchmarks.latency import forecast as benchmark
from benchmarks.latency.forecast import ForecastSettings, Measured, places, told
from benchmarks.latency.forecast_results import describe, plot, ratios, regrets, right, table
from benchmarks.latency.forecast_shapes import SHAPES, Case, Prompt
from benchmarks.report import plots
from evals.report.__main__ import details
from skim_common.errors import SkimError
from tests.unit.benchmarks.openai_server import openai_server
from tests.unit.conftest import MODELS

SETTINGS = ForecastSettings(str(MODELS / "target"), str(MODELS / "speculator"), rounds=2)
ONE = Measured(
    shape="plain",
    read="windows",
    round=0,
    prompt_tokens=8000,
    kept_tokens=1000,
    chosen="speculative",
    reason="sooner",
    estimates={"dense": 1000.0, "speculative": 300.0},
    first_ms={"dense": 1200.0, "speculative": 400.0},
    parts={"dense": {"tokenize": 20.0}, "speculative": {}},
    load=1.0,
)


def test_every_shape_is_measured_in_each_way():
    found = list(places(SETTINGS))
    assert len(set(found)) == len(found) == 2 * 2 * len(SHAPES)
    assert found[:3] == [("plain", "windows", 0), ("plain", "windows", 1), ("plain", "whole", 0)]


def test_a_shape_is_the_same_in_each_run_and_its_rounds_share_only_their_head():
    for make in SHAPES.values():
        assert make(1) == make(1)
        assert make(0).asked.messages[-1] != make(1).asked.messages[-1]
    heads = [SHAPES["tools 8k"](number).asked.fields["tools"] for number in range(2)]
    assert heads[0] == heads[1]
    assert [bool(SHAPES["tools 8k"](number).before) for number in range(2)] == [True, False]


def test_what_a_client_is_told():
    assert told("sooner;dense=120;speculative=340;shed=keep") == ("sooner", {"dense": 120.0, "speculative": 340.0})
    assert told("unmeasured") == ("unmeasured", {})


async def test_both_clients_have_the_same_turns_before():
    """One asks with `auto`, the other one for the mode that was not chosen."""
    case = Case(
        Prompt([{"role": "user", "content": "third"}]), [(Prompt([]), "speculative"), (Prompt([]), "speculative")]
    )
    async with openai_server() as (url, bodies), aiohttp.ClientSession() as session:
        with pytest.raises(SkimError, match="was to run dense ran as speculative"):  # the mock runs all speculative
            await benchmark._Asker(session, url).measure(case, "later turns", "whole", 3)
    asked = [(body["cache_salt"].split()[3], body["speculative_prefill"]["enabled"]) for body in bodies]
    before = [(client, "always") for client in ("auto", "auto", "other", "other")]
    assert asked == [*before, ("auto", "auto"), ("other", False)]
    assert {body["speculative_prefill"]["read"] for body in bodies} == {"whole"}


def test_a_run_that_is_complete_starts_nothing(tmp_path):
    """Its lines are the result; an engine would take minutes."""
    file, settings = tmp_path / "run.jsonl", replace(SETTINGS, shapes=("plain",), read=("windows",))
    lines = [{"forecast": {"target": "target", "speculator": "speculator", "dtype": "float32"}}]
    lines += [asdict(replace(ONE, round=number)) for number in range(3)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = benchmark.run(replace(settings, resume=file))
    assert [one["round"] for one in found["prompts"]] == [0, 1], "a longer run has more"
    with pytest.raises(SkimError, match="another run"):
        benchmark.run(replace(settings, dtype="bfloat16", resume=file))


@pytest.fixture
def result():
    wrong = replace(ONE, round=1, chosen="dense", reason="cached", estimates={"dense": 200.0, "speculative": 900.0})
    short = replace(ONE, shape="later turns", first_ms={"dense": 150.0, "speculative": 100.0})
    return {
        "machine": {"usable_cores": 2, "machine": "x86_64", "gpu": None, "day": "2026-11-27"},
        "command": "skim bench forecast",
        "settings": asdict(SETTINGS) | {"target": "target", "speculator": "speculator"},
        "prompts": [asdict(one) for one in (ONE, wrong, short)],
    }


def test_forecasts_of_long_times_count_and_regrets_of_all(result):
    prompts = result["prompts"]
    assert ratios(prompts, "dense") == [1020 / 1200, 220 / 1200]
    assert right(ratios(prompts)) == 1 / 4  # the other three are wrong: .75, .18 and 2.25
    assert right([]) == 1.0
    assert regrets(prompts) == [400 / 1200, 1200 / 400, 100 / 150]
    assert "Right: 25% of 4 forecasts, of the worst shape (plain) 25%" in describe(result)
    assert "over 20% sooner for 1 of 3 prompts" in describe(result)


def test_table_page_and_plot(result, tmp_path):
    columns, rows = table(result)
    assert all(len(row) == len(columns) for row in rows)
    assert rows[0][:4] == ["plain", "windows", "8,000", "1,000"]
    assert rows[0][-3:] == ["25%", "speculative, sooner (1); dense, cached (1)", "3.00"]
    assert rows[1][6] == "-"
    (tmp_path / "forecast.json").write_text(json.dumps(result))
    assert "## The forecast of the first token" in details("Latency", tmp_path)
    plot(result, tmp_path / "forecast.png")
    assert plots.source_of(tmp_path / "forecast.png") == plots.digest(result)
