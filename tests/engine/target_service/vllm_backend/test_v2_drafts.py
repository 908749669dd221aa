"""Remote drafts on the V2 model runner, the default on GPUs, on CPU: its kernels run in Triton's interpreter.

With async scheduling and without it, and on two ranks. Each runs in a separate process, because vLLM checks for Triton
once, at its import.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from skim_common.environment import CORES

ROOT = Path(__file__).parents[4]
SCRIPTS = "tests.engine.target_service.vllm_backend.v2_on_cpu"
pytestmark = pytest.mark.nightly
LONGEST = True


@pytest.fixture(autouse=True)
def on_cpu(device: str) -> None:
    if device == "cuda":
        pytest.skip("on a GPU all other modules already run on the V2 runner")


def seen(script: str, *arguments: str) -> dict[str, Any]:
    """The JSON that the script prints."""
    # Two ranks need two cores: a worker's own core is not enough.
    inherited = {name: value for name, value in os.environ.items() if name != CORES}
    env = {**inherited, "PYTHONPATH": f"{ROOT / 'tests/engine/vllm_hooks/v2_on_cpu'}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", f"{SCRIPTS}.{script}", *arguments]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("mode", ["sync", "async", "ranks"])
def test_drafts_do_not_change_greedy_answers(mode: str, tmp_path: Path) -> None:
    found = seen("drafts", str(tmp_path), mode)
    assert set(found["runner"]) == {"vllm.v1.worker.cpu.model_runner.CPUModelRunner"}
    assert found["plain"] == [0] * 5
    assert found["drafts_of_plain"] == 0
    for name in ("drafted", "look_ahead", "fewer", "adaptive"):
        assert found[name]["wrong"] == []
        assert sum(found[name]["fallbacks"].values()) == 0
        if name != "adaptive":  # it drafts as many as measured times allow
            assert found[name]["accepted"] > 0.4 * found[name]["drafts"] > 10
    assert found["drafted"]["accepted"] / found["drafted"]["rounds"] > 1.3
    assert found["look_ahead"]["look_ahead"] == 15
    assert found["fewer"]["drafts_per_position"][1:] == [0, 0]
    assert found["beside"] == [True, []]
    assert found["lied_to"] == found["changed"] == []
    assert found["logprob_difference"] <= 1e-3
    plain, drafted, same = found["structured"]
    assert plain == drafted != ""
    assert same


def test_sampled_answers_have_the_targets_distribution(tmp_path: Path) -> None:
    found = seen("sampled", str(tmp_path))
    assert found.pop("wrong_q") < 1e-4
    for sampling in found.values():
        assert sampling["p"] > 0.01
        assert 0.2 < sampling["accepted"] < 0.9
