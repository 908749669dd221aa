"""Time and memory on one device: milliseconds until all submitted work is done, peak bytes, copy bandwidth."""

import time
from collections.abc import Callable

import torch


def synchronize(device: str) -> None:
    """Wait until the device has finished all submitted work."""
    if device == "cuda":
        torch.cuda.synchronize()


def milliseconds(work: Callable[[], object], device: str, repeat: int = 1) -> float:
    """Mean time of `repeat` calls in a row; measured with CUDA events on a GPU."""
    if device != "cuda":
        began = time.perf_counter()
        for _ in range(repeat):
            work()
        return 1e3 * (time.perf_counter() - began) / repeat
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(repeat):
        work()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeat


def peak_bytes(work: Callable[[], object], device: str) -> int | None:
    """The most bytes that `work` allocates in addition to what exists; None on CPU, where torch does not count them."""
    if device != "cuda":
        return None
    synchronize(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    work()
    synchronize(device)
    return torch.cuda.max_memory_allocated() - before


def copy_bandwidth(device: str, megabytes: int, repeat: int = 5) -> float:
    """Bytes per second of a copy inside the device; bytes read and bytes written both count."""
    source = torch.randint(0, 256, (megabytes * 2**20,), dtype=torch.uint8, device=device)
    into = torch.empty_like(source)
    into.copy_(source)
    return 2e3 * source.numel() / milliseconds(lambda: into.copy_(source), device, repeat)
