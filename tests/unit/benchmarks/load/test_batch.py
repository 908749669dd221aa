"""`skim bench batch`: its rows, the times of a command, and what it counts in the output. No engine runs."""

import json
import sys

import pytest

from benchmarks.commands.output import Files
from benchmarks.commands.pair_options import DemoPair
from benchmarks.harness.conversations import Question
from benchmarks.load import batch
from benchmarks.load.batch import BatchSettings, deployment, execute, rows
from benchmarks.load.batch_results import Answer, Ran, answer_of, describe, plot, table, totals_of
from benchmarks.load.commands import BatchOptions
from benchmarks.load.commands import batch as command
from cluster.batch.rows import parse
from cluster.config.load import load_config
from skim_common.errors import SkimError

SETTINGS = BatchSettings("demo_models/target", "demo_models/speculator", documents=3, questions=4, document_tokens=1200)
ASKED = {"0-1": (None, Question("How much?", "0417"))}


def test_rows_are_shuffled_and_can_be_in_order():
    shuffled, ordered = rows(SETTINGS), rows(SETTINGS, in_order=True)
    assert list(ordered) == [f"{document}-{number}" for document in range(3) for number in range(4)]
    assert list(shuffled) != list(ordered)
    assert shuffled == ordered, "only the order differs"
    for row, question in shuffled.values():
        request = parse(json.dumps(row).encode())
        text = request.body["messages"][0]["content"]
        assert text.endswith(question.text)
        assert f"is {question.expected}." in text, "the document has the answer"
    beginnings = {row["body"]["messages"][0]["content"][:1000] for row, _ in ordered.values()}
    assert len(beginnings) == 3, "the rows of a document share a prefix"


@pytest.mark.parametrize("prefill", ["auto", "always", False])
def test_the_deployment_is_one_that_skim_can_load(tmp_path, prefill):
    made = deployment(SETTINGS, batch.Path("demo_models/target"), prefill)
    (tmp_path / "deployment.yaml").write_text(json.dumps(made))
    config = load_config(tmp_path / "deployment.yaml")
    assert config.router.speculative_prefill == prefill
    assert config.selection.keep_rate == SETTINGS.keep_rate


def python(code):
    return [sys.executable, "-c", code]


def test_a_command_accepts_rows_when_it_says_so():
    began, accepted = execute(python("import time; time.sleep(.2); print('INFO Reading batch from x')"), {}, "Reading")
    assert accepted - began >= 0.2


def test_a_command_gets_its_environment():
    execute(python("import os; print(os.environ['WANTED'])"), {"WANTED": "Sending "}, "Sending ")


@pytest.mark.parametrize(
    ("code", "told"),
    [("print('Sending '); print('no memory'); raise SystemExit(3)", "no memory"), ("print('hello')", "hello")],
)
def test_a_command_that_fails_or_accepts_no_rows_is_told(code, told):
    with pytest.raises(SkimError, match=told):
        execute(python(code), {}, "Sending ")


def output(status=200, text="0417.", usage=None, headers=None):
    body = {"choices": [{"message": {"content": text}}], "usage": {"prompt_tokens": 1000, "completion_tokens": 5}}
    body["usage"] |= usage or {}
    response = {"status_code": status, "request_id": "r", "body": body, **({"headers": headers} if headers else {})}
    return {"custom_id": "0-1", "response": response, "error": None}


def test_an_answer_of_run_batch():
    cached = {"prompt_tokens_details": {"cached_tokens": 896}}
    assert answer_of(output(usage=cached), ASKED) == Answer(200, True, 1000, 1000, 896, 5)
    assert not answer_of(output(text="0418"), ASKED).right


def test_an_answer_of_skim_tells_how_it_ran():
    headers = {"x-skim-mode": "speculative", "x-skim-reason": "sooner;dense=120", "x-skim-kept-tokens": "200"}
    answer = answer_of(output(headers=headers), ASKED)
    assert (answer.kept_tokens, answer.how, answer.right) == (200, "speculative, sooner", True)


def test_a_row_without_an_answer_has_failed():
    assert answer_of(output(429), ASKED) == Answer(429, False)
    unsent = {"custom_id": "0-1", "response": None, "error": {"code": "timeout", "message": "late"}}
    assert answer_of(unsent, ASKED) == Answer(0, False)


GOOD, WRONG = Answer(200, True, 1000, 1000, 500, 4), Answer(200, False, 1000, 200, 0, 4, "speculative, sooner")
RUNS = [
    Ran("run-batch", 1, 20.0, 4.0, [GOOD] * 8),
    Ran("auto", 1, 30.0, 2.0, [GOOD] * 4 + [WRONG] * 4),
    Ran("run-batch", 2, 22.0, 8.0, [GOOD] * 8),
    Ran("auto", 2, 40.0, 2.0, [GOOD] * 7 + [Answer(500, False)]),
]


def test_totals_compare_rates_within_a_round():
    stock, auto = totals_of(RUNS, "run-batch")
    assert stock["rows_per_s"] == {"median": 1.5, "lowest": 1.0, "highest": 2.0}
    assert auto["over_baseline"] == {"median": 2.75, "lowest": 2.0, "highest": 3.5}
    assert auto["whole_s"]["median"] == 37.0
    assert (auto["rows"], auto["right"], auto["failed"]) == (16, 11, 1)
    assert (auto["prompt_tokens"], auto["kept_tokens"], auto["cached_tokens"]) == (15_000, 11_800, 5500)
    assert auto["how"] == {"speculative, sooner": 4}


@pytest.fixture
def result():
    modes = {mode: batch.MODES[mode] for mode in ("run-batch", "auto")}
    return {"settings": vars(SETTINGS), "modes": modes, "totals": totals_of(RUNS, "run-batch")}


def test_the_table_has_a_row_for_each_mode(result):
    columns, cells = table(result)
    auto = dict(zip(columns, cells[1], strict=True))
    assert (auto["mode"], auto["rows/s"], auto["failed"], auto["kept"]) == ("auto", "3.75", "1", "79%")
    assert "12 rows" in describe(result)
    assert "speculative, sooner (4)" in describe(result)


def test_the_plot_is_drawn(result, tmp_path):
    pytest.importorskip("matplotlib")
    plot(result, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size


def test_a_run_that_is_cut_off_has_its_complete_rounds_in_the_file(tmp_path, monkeypatch):
    def ran(settings, target, mode, number, folder):
        if (mode, number) == ("auto", 3):
            raise SkimError("cut off")
        return Ran(mode, number, 20.0, 4.0, [GOOD] * 8)

    monkeypatch.setattr(batch, "_ran", ran)
    file = tmp_path / "batch.json"
    with pytest.raises(SkimError, match="cut off"):
        command.__wrapped__(DemoPair(), BatchOptions(rounds=4, modes="auto"), Files(file))
    kept = json.loads(file.read_text())
    assert [(one["mode"], one["round"]) for one in kept["runs"]] == [
        ("run-batch", 1),
        ("auto", 1),
        ("run-batch", 2),
        ("auto", 2),
    ]
    assert len(table(kept)[1]) == 2
    assert "48 rows" in describe(kept)
