"""Memory and open descriptors of a deployment's processes, by kind, and how fast the memory grows."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

WARM_S = 60.0
"""A process fills its caches for so long; samples of a younger one do not count for its growth."""

KINDS = {
    "ServeReplica:skim:": "",
    "ServeController": "controller",
    "ProxyActor": "proxy",
    "gcs_server": "Ray head",
    "raylet/raylet": "raylet",
    "log_monitor.py": "log monitor",
    "DashboardAgent": "dashboard agent",
    "RuntimeEnvAgent": "runtime environment agent",
    "ray::": "other Ray workers",
    "skim": "skim serve",
}
"""A word of the command line, and the kind it means; "": the next word, which names a pool or the router."""


@dataclass(frozen=True)
class Sample:
    """One process at one time. at_s: since the run began. age_s: of the process. mib: memory that only it uses."""

    kind: str
    pid: int
    at_s: float
    age_s: float
    mib: float
    descriptors: int


def kind_of(command: str) -> str:
    """The kind of a process by its command line."""
    for word, kind in KINDS.items():
        if word in command:
            return kind or re.split(r"\W", command.partition(word)[2], maxsplit=1)[0]
    return "Ray's helpers"


def samples(root: psutil.Process, began: float, now: float) -> list[Sample]:
    """One of each process below `root`, and of it. began, now: seconds since the epoch."""
    found = []
    for process in [root, *root.children(recursive=True)]:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            kind = kind_of(" ".join(process.cmdline()) or process.name())
            mib, age = process.memory_full_info().uss / 2**20, now - process.create_time()
            found.append(Sample(kind, process.pid, now - began, age, mib, process.num_fds()))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def by_kind(taken: Iterable[Sample]) -> dict[str, dict[str, float]]:
    """Sums over the processes of each kind: how many, MiB, descriptors. taken: of one moment."""
    sums: defaultdict[str, dict[str, float]] = defaultdict(lambda: {"processes": 0, "mib": 0.0, "descriptors": 0})
    for sample in taken:
        total = sums[sample.kind]
        total["processes"] += 1
        total["mib"] = round(total["mib"] + sample.mib, 1)
        total["descriptors"] += sample.descriptors
    return dict(sums)


def slope(taken: Sequence[Sample]) -> float | None:
    """MiB per minute and process: least squares over all processes, each with an offset of its own.

    None without two samples of one warm process.
    """
    processes: defaultdict[int, list[Sample]] = defaultdict(list)
    for sample in taken:
        if sample.age_s >= WARM_S:
            processes[sample.pid].append(sample)
    covariance = variance = 0.0
    for series in processes.values():
        middle_s = sum(one.at_s for one in series) / len(series)
        middle_mib = sum(one.mib for one in series) / len(series)
        covariance += sum((one.at_s - middle_s) * (one.mib - middle_mib) for one in series)
        variance += sum((one.at_s - middle_s) ** 2 for one in series)
    return 60 * covariance / variance if variance else None


def usage(looks: Sequence[Sequence[Sample]]) -> dict[str, Any]:
    """By kind: `begin` (the first look after the run's warm-up), `end` (the last one), `mib_per_minute`.

    descriptors: the fewest of the first and of the last third of the looks. Connections that clients keep come and go;
    what leaked stays.
    """
    warm = [look for look in looks if look and look[0].at_s >= WARM_S] or looks[-1:]
    if not warm:
        return {}
    sums = [by_kind(look) for look in warm]
    third = -(-len(sums) // 3)
    begin = _with_fewest_descriptors(sums[0], sums[:third])
    end = _with_fewest_descriptors(sums[-1], sums[-third:])
    found = {}
    for kind in sorted(begin.keys() & end.keys()):
        grown = slope([one for look in warm for one in look if one.kind == kind])
        found[kind] = {"begin": begin[kind], "end": end[kind], "mib_per_minute": grown and round(grown, 3)}
    return found


def _with_fewest_descriptors(
    at: dict[str, dict[str, float]], looks: Sequence[dict[str, dict[str, float]]]
) -> dict[str, dict[str, float]]:
    return {
        kind: {**used, "descriptors": min(look[kind]["descriptors"] for look in looks if kind in look)}
        for kind, used in at.items()
    }
