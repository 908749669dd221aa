"""The hook of the V2 model runner (the default on GPUs), on CPU: its Triton kernels run in Triton's interpreter.

It runs in a separate process, because vLLM checks for Triton once, at its import.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.reference.text_alone import NO_IMAGES

ROOT = Path(__file__).parents[4]
LONGEST = True


@pytest.mark.parametrize("family", ["llama", pytest.param("qwen3_vl", marks=pytest.mark.nightly)])
def test_the_v2_runner_is_the_oracles(device: str, tmp_path: Path, family: str) -> None:
    if device == "cuda":
        pytest.skip("on a GPU all other modules already run on the V2 runner")
    path = [str(ROOT / "tests/engine/vllm_hooks/v2_on_cpu"), NO_IMAGES, str(ROOT)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    command = [
        sys.executable,
        "-m",
        "tests.engine.target_service.vllm_backend.v2_on_cpu.compare",
        str(tmp_path),
        family,
    ]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["runner"] == ["vllm.v1.worker.cpu.model_runner.CPUModelRunner"]
    assert seen["model_state"] == ["RestoringDefaultModelState"]
    for name in ("kept", "plain", "chunked", "shuffled", "cached", "late"):
        assert seen[name]["wrong"] == 0
        assert seen[name]["difference"] <= 1e-3
    assert (seen["cached"]["cached_tokens"], seen["late"]["cached_tokens"]) == (32, 32)
    assert seen["withheld"]["wrong"] > seen["tokens"] / 2
    scored = seen["scored"]
    assert scored["cached"] >= 128
    assert scored["difference"] <= 1e-3
    assert scored["ranks"] == scored["true_ranks"]
    assert scored["again"] is None
    # Answers that another replica began; told only as a part of the prompt, the penalties miss their tokens.
    assert len(seen["cut"]) > 2
    assert seen["cut"] == [[]] * len(seen["cut"])
    assert any("tokens" in wrong for wrong in seen["cut_untold"])
