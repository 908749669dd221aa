"""vLLM and its compiled kernels load beside the installed torch."""

import importlib
import subprocess

import torch

from benchmarks.gpu.steps.checks import Checks, Settings

OLDEST_DRIVER = 580
"""For the wheels of CUDA 13."""


def imports(settings: Settings, checks: Checks) -> None:
    """The import of vLLM, its platform, and on CUDA its own kernels and FlashAttention 3."""
    import vllm
    from vllm.platforms import current_platform

    major, minor = (int(part) for part in vllm.__version__.split(".")[:2])
    checks.measured("vllm", major + minor / 100, f"imports; it is version {vllm.__version__}")
    fits = current_platform.is_cuda() if settings.device == "cuda" else current_platform.is_cpu()
    checks.judge("platform", fits, int(fits), f"{type(current_platform).__name__} is the platform for this device")
    if settings.device == "cpu":
        checks.skip("kernels", "only a build for CUDA has them")
        checks.skip("flash attention 3", "needs a Hopper GPU")
        return
    with checks.part("driver"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()[0]
        version = float(".".join(driver.split(".")[:2]))
        checks.judge("driver", version >= OLDEST_DRIVER, version, f"is the driver's version, at least {OLDEST_DRIVER}")
    capability = torch.cuda.get_device_capability()
    checks.measured("capability", capability[0] + capability[1] / 10, "the compute capability of the GPU")
    with checks.part("kernels"):
        importlib.import_module("vllm._C_stable_libtorch")
        checks.judge("kernels", True, 1, "vllm._C_stable_libtorch loads")
    if capability[0] != 9:
        checks.skip("flash attention 3", "needs a Hopper GPU")
        return
    with checks.part("flash attention 3"):
        flash = importlib.import_module("vllm.vllm_flash_attn.flash_attn_interface")
        there = bool(flash.FA3_AVAILABLE)
        checks.judge("flash attention 3", there, int(there), f"it loads ({flash.FA3_UNAVAILABLE_REASON or 'no error'})")
