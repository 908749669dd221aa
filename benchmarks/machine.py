"""What a measurement ran on, for its JSON."""

import os
import platform
from importlib.metadata import version
from typing import Any


def machine(*packages: str) -> dict[str, Any]:
    """The machine, its load now, and the versions of the installed `packages`."""
    return {
        "machine": platform.machine(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: version(name) for name in packages},
    }
