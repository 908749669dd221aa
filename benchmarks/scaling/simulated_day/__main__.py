"""The committed day: `python -m benchmarks.scaling.simulated_day FILE.json`. It takes no GPU, and a minute."""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.gpu.presets import MODELS, make_folder
from benchmarks.report.machine import machine
from benchmarks.scaling.simulated_day.compare import SYSTEMS, compare
from benchmarks.scaling.simulated_day.serve_delays import HOOK
from benchmarks.scaling.simulated_day.traffic import DAY_S, RATES, daily
from cluster.json_file import write_json
from cluster.plan.engine import Model
from cluster.plan.gpus import Machine, gpu_named
from cluster.plan.pools import Load
from cluster.plan.size import Sizer
from skim_common.symbols import RAY

TARGET, SPECULATOR, GPU = "llama-8b", "llama-1b", "h200"
LOAD = Load(qps=150.0, prompt=32000, answer=300, slo_ttft=2.0, slo_tpot=0.05)
"""qps: at the peak of the day."""
MOST_REQUESTS = 500_000
"""Requests that are simulated: each stands for several of the day."""


def simulated() -> dict[str, Any]:
    """The answer of `compare`, and the seconds that it took."""
    RAY.check(HOOK.symbols)
    gpu = gpu_named(GPU)
    with TemporaryDirectory() as folder:
        target, speculator = (
            Model.load(make_folder(MODELS[name], Path(folder) / name)) for name in (TARGET, SPECULATOR)
        )
    expected = LOAD.qps * DAY_S * sum(RATES) / len(RATES)
    began = time.perf_counter()
    traffic = daily(LOAD.qps, LOAD.prompt, LOAD.answer, share=min(1.0, MOST_REQUESTS / expected))
    result = compare(Sizer(target, speculator, gpu, Machine.of(gpu)), LOAD, traffic)
    return {"seconds": round(time.perf_counter() - began, 1), **result}


def main(file: Path) -> None:
    began = machine()
    result = simulated()
    for name, words in SYSTEMS.items():
        found = result["systems"][name]
        hours = sum(found["gpu_hours"].values())
        print(f"{words}: {found['within']:.1%} within the SLOs, {hours:,.0f} GPU hours")
    command = f"python -m benchmarks.scaling.simulated_day {file.name}"
    write_json(file, {"command": command, "machine": began, **result})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
