"""The session without an engine: its command, what it goes on with, and what it hands out."""

import json
import tarfile

import pytest
from typer.testing import CliRunner

from benchmarks.gpu import __main__ as cli
from benchmarks.gpu.memory import GIB, weight_bytes
from benchmarks.gpu.presets import configs, preset
from benchmarks.gpu.proof.plan import STEPS as PROOF
from benchmarks.gpu.session import measurements
from benchmarks.gpu.session.plan import STEPS
from benchmarks.gpu.session.summary import summary
from benchmarks.gpu.steps.checks import Checks, Settings, read_checks
from benchmarks.gpu.steps.runner import ON_CPU
from benchmarks.gpu.steps.step import ROOT, Step


def _step(name, limit_s=60.0):
    return Step(name, f"it {name}", f"tests.unit.benchmarks.gpu.session.session_steps:{name}", limit_s, (), alone=True)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run the command in a folder of its own, with $OUT. Gives its result and the journal."""
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setenv("OUT", str(out))

    def go(*steps, arguments=()):
        monkeypatch.setattr(cli, "SESSION", steps)
        words = ["session", "--device", "cpu", "--toy", "--folder", str(tmp_path / "session"), *arguments]
        done = CliRunner().invoke(cli.app, words)
        return done, json.loads((tmp_path / "session" / "session.json").read_text())

    return go


def test_a_step_that_overruns_or_fails_stops_no_other(run, tmp_path):
    done, journal = run(_step("overruns", limit_s=10 / ON_CPU), _step("fails"), _step("whole"))
    assert done.exit_code == 1
    assert [step["status"] for step in journal["steps"].values()] == ["FAIL", "FAIL", "PASS"]
    says = [check["says"] for check in journal["steps"]["overruns"]["checks"]]
    assert says == ["times faster than dense", "the step was ended after its limit of 10 s"]
    assert json.loads((tmp_path / "session" / "overruns.json").read_text()) == {
        "rows": [1], "command": "python -m benchmarks.gpu session --only overruns", "complete": False,
    }  # fmt: skip
    assert json.loads((tmp_path / "session" / "whole.json").read_text())["complete"]
    assert "RuntimeError: no engine" in done.output


def test_the_next_run_goes_on(run, tmp_path):
    steps = _step("whole"), _step("overruns", limit_s=600)
    _, journal = run(*steps, arguments=("--minutes", "0.25"))
    assert [step["status"] for step in journal["steps"].values()] == ["PASS", "TODO"], "its own limit was not reached"
    _, again = run(steps[0], _step("overruns", limit_s=5 / ON_CPU))
    assert (tmp_path / "session" / "runs").read_text() == "whole\n", "what has a result is not repeated"
    assert again["steps"]["whole"] == journal["steps"]["whole"]
    assert again["steps"]["overruns"]["status"] == "FAIL"


def test_what_leaves_the_machine_is_enough_to_go_on_elsewhere(run, tmp_path):
    run(_step("whole"), _step("fails"))
    out = tmp_path / "out"
    assert {file.name for file in out.iterdir()} == {"summary.md", "session.json", "session.tar.gz"}
    with tarfile.open(out / "session.tar.gz") as archive:
        archive.extractall(tmp_path / "elsewhere", filter="data")
    assert (tmp_path / "elsewhere" / "whole.json").exists()
    text = (out / "summary.md").read_text()
    assert text == (tmp_path / "session" / "summary.md").read_text()
    assert "**PASS** `whole`" in text
    assert "PASS ratio: 2.5 times faster than dense" in text
    assert "**FAIL** `fails`" in text


def test_a_run_on_a_cpu_is_never_taken_for_one_on_a_gpu(run):
    _, journal = run(_step("whole"))
    assert "No number says anything about a GPU" in summary(journal)
    journal["settings"]["device"] = "cuda"
    assert "No number says" not in summary(journal)


def test_mistakes(run, monkeypatch):
    monkeypatch.setattr(cli, "SESSION", (_step("whole"),))
    without_toy = CliRunner().invoke(cli.app, ["session", "--device", "cpu"])
    assert "add --toy" in str(without_toy.exception)
    unknown = CliRunner().invoke(cli.app, ["session", "--device", "cpu", "--toy", "--only", "other"])
    assert "choose from whole" in str(unknown.exception)


def test_the_plan():
    assert len({step.name for step in STEPS}) == len(STEPS)
    for step in STEPS:
        module, _, name = step.function.partition(":")
        assert f"def {name}(" in (ROOT / f"{module.replace('.', '/')}.py").read_text()
        assert all((ROOT / path).exists() for path in step.code)
        assert step.limit_s <= 420
    assert [step.name for step in STEPS[5:]] == ["decode", "layout", "hybrid"]
    assert all(step in PROOF for step in STEPS[5:])


def test_natural_questions_need_a_real_pair_and_a_file(tmp_path):
    def says(**given):
        file = tmp_path / f"{len(given)}.jsonl"
        measurements.answers(Settings("cuda", False, str(tmp_path), **given), Checks(file))
        [check] = read_checks(file)
        assert check.status == "SKIP"
        return check.says

    assert says() == "there is not a real pair (--models)"
    for name in measurements.REAL.values():
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text("{}")
    assert says(models=str(tmp_path / "models")) == "there is not a file of questions (--questions)"


@pytest.mark.parametrize(("gib", "chunks"), [(139, (2048, 8192)), (79, (8192,))])
def test_stock_servers_that_fit_beside_skim(monkeypatch, gib, chunks):
    monkeypatch.setattr(measurements, "device_memory", lambda device: (gib * GIB, gib * GIB))
    assert measurements.chunks_that_fit("cuda") == chunks
    target, speculator = configs(preset("8b"))
    kv = 10 * (1 + len(chunks)) + 10 / 3
    weights = (weight_bytes(target) * (1 + len(chunks)) + weight_bytes(speculator)) / GIB
    working = 3 * (2 + len(chunks))
    assert kv + weights + working < gib
