"""The runner of steps: results, failures, limits, and going on after a break."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest
from typer.testing import CliRunner

from benchmarks.gpu import __main__ as cli
from benchmarks.gpu.proof.plan import STEPS
from benchmarks.gpu.steps.checks import Check, Checks, Settings, read_checks
from benchmarks.gpu.steps.runner import ON_CPU, Runner
from benchmarks.gpu.steps.step import ROOT, Step

SETTINGS = Settings("cpu", True)
MACHINE = {"gpu": None, "versions": {"torch": "2"}}


def _step(function, limit_s=60.0, **more):
    return Step(function, f"it {function}", f"tests.unit.benchmarks.gpu.steps.steps:{function}", limit_s, (), **more)


@pytest.fixture
def told():
    return []


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Lines that the steps write when they run."""
    file = tmp_path / "runs"
    monkeypatch.setenv("PROOF_RUNS", str(file))
    return lambda: file.read_text().split("\n")[:-1] if file.exists() else []


@pytest.fixture
def proof(tmp_path, told, runs):
    def make(*steps, minutes=5.0, machine=MACHINE, settings=SETTINGS, jobs=1):
        return Runner(steps, settings, tmp_path / "proof.json", machine, minutes, told.append, jobs)

    return make


@pytest.fixture
def result(tmp_path):
    return lambda: json.loads((tmp_path / "proof.json").read_text())


def _checks(entry):
    return [(check["name"], check["status"]) for check in entry["checks"]]


def test_every_step_has_a_result(proof, result, told):
    assert proof(_step("passes"), _step("only_skips")).run()
    steps = result()["steps"]
    assert _checks(steps["passes"]) == [("equal", "PASS"), ("graphs", "SKIP")]
    assert steps["passes"]["checks"][0] == {"name": "equal", "status": "PASS", "number": 3, "says": "things are equal"}
    assert [step["status"] for step in steps.values()] == ["PASS", "SKIP"]
    assert result()["status"] == "PASS"
    assert result()["settings"] == asdict(SETTINGS)
    assert result()["machine"] == MACHINE
    assert any("PASS  equal" in line and "3  things are equal" in line for line in told)


def test_what_fails_is_told_and_the_rest_runs(proof, result, told):
    assert not proof(*map(_step, ("fails", "raises", "dies", "says_nothing", "passes"))).run()
    steps = result()["steps"]
    assert [step["status"] for step in steps.values()] == ["FAIL"] * 4 + ["PASS"]
    assert _checks(steps["fails"]) == [("first", "FAIL"), ("second", "PASS")]
    assert _checks(steps["raises"]) == [("first", "PASS"), ("second", "FAIL"), ("third", "PASS"), ("end", "FAIL")]
    assert [check["says"] for check in steps["raises"]["checks"] if check["status"] == "FAIL"] == [
        "ValueError: two lines",
        "RuntimeError: no engine",
    ]
    assert steps["dies"]["checks"][-1]["says"].startswith("the process ended with signal 11 (SIGSEGV): ")
    assert steps["raises"]["log"][-1] == "RuntimeError: no engine"
    assert "log" not in steps["passes"]
    assert steps["says_nothing"]["checks"][-1]["says"] == "the step ended without a check"
    assert result()["status"] == "FAIL"
    assert told[-1] == "\n1 PASS, 4 FAIL"


def test_a_step_that_hangs_is_ended_with_its_processes(proof, result, runs):
    assert not proof(_step("hangs", limit_s=3 / ON_CPU), _step("passes")).run()
    steps = result()["steps"]
    assert _checks(steps["hangs"]) == [("first", "PASS"), ("end", "FAIL")]
    assert steps["hangs"]["checks"][-1]["says"] == "the step was ended after its limit of 3 s"
    assert steps["passes"]["status"] == "PASS"
    _assert_ended(runs()[0])


def test_nothing_that_a_step_started_stays(proof, result, runs):
    assert proof(_step("leaves_processes")).run()
    [left] = runs()
    assert not any(_runs(pid) for pid in left.split()), "the step's end waits for them"


def test_a_step_is_told_of_when_its_result_is_in_the_file(tmp_path, runs, result):
    seen = []
    steps = _step("passes"), _step("fails")
    Runner(
        steps, SETTINGS, tmp_path / "proof.json", MACHINE, 5, lambda _: None, ended=lambda: seen.append(result())
    ).run()
    assert [[step["status"] for step in each["steps"].values()] for each in seen] == [
        ["PASS", "TODO"],
        ["PASS", "FAIL"],
    ]


def test_a_step_that_has_a_result_is_not_repeated(proof, result, runs, told):
    steps = _step("passes"), _step("fails")
    proof(*steps).run()
    first = result()
    assert not proof(*steps).run()
    assert runs() == ["passes"]
    assert result()["steps"] == first["steps"]
    assert any(line.startswith("FAIL  fails: done before") for line in told)
    proof(*steps).run(again=True)
    assert runs() == ["passes"] * 2


@pytest.mark.parametrize(
    "changed",
    [
        {"settings": replace(SETTINGS, toy=False)},
        {"machine": {**MACHINE, "gpu": "H100"}},
        {"machine": {"gpu": None, "versions": {"torch": "3"}}},
    ],
)
def test_a_result_from_other_circumstances_is_repeated(proof, runs, changed):
    proof(_step("passes")).run()
    proof(_step("passes"), **changed).run()
    assert runs() == ["passes"] * 2


def test_a_result_of_other_code_is_repeated(proof, runs, tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.gpu.steps.step.ROOT", tmp_path)
    (tmp_path / "code").mkdir()
    step = replace(_step("passes"), code=("code",))
    for text in ("a = 1", "a = 1", "a = 2"):
        (tmp_path / "code" / "module.py").write_text(text)
        proof(step).run()
    assert runs() == ["passes"] * 2


def test_steps_run_at_once_but_not_beside_one_that_measures(proof, result, runs):
    """Each of two steps ends when the other one has begun; the step that measures begins after both."""
    steps = _step("meets"), replace(_step("meets"), name="meets again"), _step("passes", alone=True), _step("fails")
    assert not proof(*steps, jobs=2).run()
    assert [step["status"] for step in result()["steps"].values()] == ["PASS", "PASS", "PASS", "FAIL"]
    assert runs() == ["met", "met", "passes"]


def test_only_some_steps(proof, result, runs):
    steps = _step("fails"), _step("passes")
    assert proof(*steps).run(["passes"])
    assert [step["status"] for step in result()["steps"].values()] == ["TODO", "PASS"]
    assert result()["status"] == "TODO"
    assert not proof(*steps).run()
    assert runs() == ["passes"]


def test_what_the_minutes_cut_is_left_for_the_next_run(proof, result):
    assert not proof(_step("hangs"), _step("passes"), minutes=0.05).run()
    assert [step["status"] for step in result()["steps"].values()] == ["TODO", "TODO"]


RUN = """
import signal
import sys
from pathlib import Path
from benchmarks.gpu.steps.checks import Settings
from benchmarks.gpu.steps.step import Step
from benchmarks.gpu.steps.runner import ON_CPU, Runner
# A process that a shell starts in the background inherits an ignored SIGINT.
signal.signal(signal.SIGINT, signal.default_int_handler)
steps = [
    Step(name, name, f"tests.unit.benchmarks.gpu.steps.steps:{name}", 600, (), alone=name == "fails")
    for name in ("passes", "hangs", "fails")
]
Runner(steps, Settings("cpu", True), Path(sys.argv[1]), {}, 5, jobs=int(sys.argv[2])).run()
"""


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_file_is_complete_after_a_kill(tmp_path, runs, how, jobs):
    """The runner dies while the second step runs: all steps are in the file, and its processes end, too."""
    file = tmp_path / "proof.json"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    running = subprocess.Popen([sys.executable, "-c", RUN, str(file), str(jobs)], env=env, stderr=subprocess.DEVNULL)
    while len(runs()) < 2 or _steps(file)["passes"]["status"] != "PASS" or not _steps(file)["hangs"]["checks"]:
        time.sleep(0.05)
        assert running.poll() is None
    running.send_signal(how)
    running.wait()
    steps = _steps(file)
    assert [step["status"] for step in steps.values()] == ["PASS", "RUNNING", "TODO"]
    assert _checks(steps["hangs"]) == [("first", "PASS")]
    _assert_ended(next(line for line in runs() if line != "passes"))


def _steps(file):
    return json.loads(file.read_text())["steps"]


def _assert_ended(pids):
    """The step and the process that it started."""
    for pid in pids.split():
        while _runs(pid):
            time.sleep(0.01)


def _runs(pid):
    """Whether the process is there, and not ended and only not yet reaped by init."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_line_that_is_not_complete_is_left_out(tmp_path):
    file = tmp_path / "lines"
    Checks(file).judge("first", True, 1, "is right")
    whole = file.read_text()
    file.write_text(whole + whole[:20])
    assert [asdict(check) for check in read_checks(file)] == [asdict(Check("first", "PASS", 1.0, "is right"))]


def test_the_plan():
    assert len({step.name for step in STEPS}) == len(STEPS)
    assert max(step.limit_s for step in STEPS) <= 480
    for step in STEPS:
        module, _, name = step.function.partition(":")
        file = f"{module.replace('.', '/')}.py"
        assert f"def {name}(" in (ROOT / file).read_text()
        assert file in step.code
        assert all((ROOT / path).exists() for path in step.code)


def _run(monkeypatch, *arguments):
    monkeypatch.setattr(cli, "STEPS", [_step("fails"), _step("passes")])
    return CliRunner().invoke(cli.app, ["proof", *arguments])


def test_the_command(tmp_path, monkeypatch, runs):
    cpu = ["--device", "cpu", "--toy", "--json", str(tmp_path / "proof.json")]
    assert "passes" in _run(monkeypatch, "--list").output
    failed = _run(monkeypatch, *cpu)
    assert failed.exit_code == 1
    assert "FAIL  first" in failed.output
    passed = _run(monkeypatch, *cpu, "--only", "passes")
    assert passed.exit_code == 0
    assert "done before" in passed.output
    assert "no step 'other'" in str(_run(monkeypatch, *cpu, "--only", "other").exception)
    assert "add --toy" in str(_run(monkeypatch, "--device", "cpu").exception)
    monkeypatch.setattr(cli, "ROOT", tmp_path)
    assert "run it in a checkout" in str(_run(monkeypatch, *cpu).exception)
