"""The time of work on a device, measured without waiting for the device."""

import time

import torch


class DeviceTimer:
    """Measures from its creation until `stop`.

    CUDA kernels run after their launch. So two events in the stream measure the kernels between them. On a CPU, work
    is done when its call returns, and the clock measures it.
    """

    def __init__(self, device: torch.device) -> None:
        self._events = [torch.cuda.Event(enable_timing=True) for _ in range(2)] if device.type == "cuda" else []
        self._elapsed_ms = 0.0
        self._began = time.perf_counter()
        if self._events:
            self._events[0].record()

    def stop(self) -> None:
        if self._events:
            self._events[1].record()
        self._elapsed_ms = 1e3 * (time.perf_counter() - self._began)

    def milliseconds(self) -> float:
        """Call it after `stop`; on CUDA after a result was copied to the host, so that both events are done."""
        if self._events:
            return self._events[0].elapsed_time(self._events[1])
        return self._elapsed_ms
