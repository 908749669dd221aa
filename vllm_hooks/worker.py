"""vLLM's worker of this platform with restored positions: the base class of both services' workers."""

import ctypes
import platform
from contextlib import nullcontext
from typing import Any

from vllm.platforms import current_platform

from vllm_hooks.positions import restore_positions, restored_model_state

if current_platform.is_cpu():
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker

_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA = 158, 0x1023, 18


class RestoringWorker(PlatformWorker):
    """Installs the hook for the model runner that vLLM chose, on every rank of every pipeline stage."""

    def init_device(self) -> None:
        if current_platform.is_cpu():
            request_amx()
        super().init_device()
        if not self.use_v2_model_runner:
            restore_positions(self.model_runner)

    def load_model(self, **kwargs: Any) -> None:
        with restored_model_state() if self.use_v2_model_runner else nullcontext():
            super().load_model(**kwargs)


def request_amx() -> None:
    """Ask Linux for AMX, the matrix unit of newer x86 processors, on behalf of this process (arch_prctl(2)).

    An AMX instruction without it ends the process (SIGILL). oneDNN asks at its first large matrix product. vLLM's CPU
    attention does not ask, so an engine whose first step has one token would die there: the decoding half of a split
    target, which gets its KV blocks from the other half.
    """
    if platform.system() == "Linux" and platform.machine() == "x86_64":
        ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
