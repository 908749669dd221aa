"""The simulation of a day against a real deployment under a load step: `python -m benchmarks.report.simulated`.

`benchmarks.scaling.load_step` measures both. The engine speeds of the simulation (operations per second, and seconds of
a step), the seconds of a speculative request besides both engines, and the share that is kept come from its calibration
alone: single prompts of other lengths before the step. Of the step itself, the simulation gets the times at which the
requests were sent, and their tokens.
"""

import json
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report.planned import ROOT, bench_model, cpu_engine
from benchmarks.scaling.load_step import SPECULATOR, TARGET
from benchmarks.scaling.simulated_day.day import System, simulate
from benchmarks.scaling.simulated_day.pool import PoolPlan
from benchmarks.scaling.simulated_day.traffic import Traffic
from cluster.plan.engine import LOOK_AHEAD, Engine, Model
from cluster.plan.gpus import Machine
from skim_common.models.costs import Read

BIN_S = 15.0
CHUNK = 2048


def load_step() -> dict[str, Any]:
    """The committed load step."""
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "scaling" / "load-step.json").read_text(encoding="utf-8"))
    return found


class Curves(NamedTuple):
    """By bins of BIN_S: mean seconds to the first token of the requests that were sent in it, and the mean number of
    requests that wait for theirs. NaN where none was sent.
    """

    first: np.ndarray
    waiting: np.ndarray


def calibrated(rows: Sequence[dict[str, Any]]) -> System:
    """One replica of each pool with the speeds of these prompts."""
    kept, whole = ([Read(row[name]) for row in rows] for name in ("kept_tokens", "prompt_tokens"))
    seconds = {part: [row["parts_s"][part] for row in rows] for part in ("prefill", "speculate")}
    target = _engine(bench_model(TARGET), kept, 0, seconds["prefill"])
    speculator = _engine(bench_model(SPECULATOR), whole, LOOK_AHEAD, seconds["speculate"])
    others = [row["first_s"] - row["parts_s"]["prefill"] - row["parts_s"]["speculate"] for row in rows]
    return System(
        PoolPlan(target, 0, 1, cache_tokens=math.inf),
        PoolPlan(speculator, 0, 1, cache_tokens=math.inf),
        keep_rate=statistics.fmean(row["kept_tokens"] / row["prompt_tokens"] for row in rows),
        skim_s=statistics.median(others),
        max_wait_s=math.inf,
        always=True,
        min_prompt_tokens=1,
        tick_s=1.0,
    )


def _engine(model: Model, reads: Sequence[Read], more_steps: int, seconds: Sequence[float]) -> Engine:
    """The engine whose operations per second and seconds per step fit these reads best, by least relative squares."""
    operations = [model.read.linear_flops(read) + model.read.attention_flops(read) for read in reads]
    steps = [-(-read.tokens // CHUNK) + more_steps for read in reads]
    amounts = np.array([operations, steps]).T / [1e10, 1] / np.array(seconds)[:, None]
    of_operations, of_step = np.linalg.lstsq(amounts, np.ones(len(seconds)), rcond=None)[0]
    speed = 1e10 / float(of_operations)
    return cpu_engine(model, Machine(speed, speed, math.inf, step_s=max(0.0, float(of_step))))


def predicted(requests: Sequence[dict[str, Any]], answer_tokens: int, system: System) -> np.ndarray:
    """Simulated seconds to the first token of requests in the order in which they were sent, float64 [N]."""
    count = len(requests)
    at = np.array([request["at_s"] for request in requests])
    nothing, never = np.zeros(count, np.int64), np.full(count, -1)
    prompt = np.array([request["prompt_tokens"] for request in requests])
    answers = np.full(count, answer_tokens)
    traffic = Traffic(float(at[-1]) + 1, at, prompt, answers, nothing, never, np.full(count, math.inf))
    return simulate(traffic, system).first


def curves(at: np.ndarray, first: np.ndarray) -> Curves:
    """at: when requests were sent. first: seconds to their first tokens. float64 [N]."""
    bins = math.ceil((at + first).max() / BIN_S)
    place = (at // BIN_S).astype(int)
    sent = np.bincount(place, minlength=bins)
    with np.errstate(invalid="ignore"):
        means = np.bincount(place, first, minlength=bins) / sent
    edges = BIN_S * np.arange(bins + 1)
    there = np.minimum(edges[1:, None], at + first) - np.maximum(edges[:-1, None], at)
    return Curves(means, np.maximum(there, 0).sum(axis=1) / BIN_S)


def error(measured: np.ndarray, simulated: np.ndarray) -> float:
    """The mean distance of two curves, as a share of the mean of the measured one."""
    size = max(measured.size, simulated.size)
    padded = [np.pad(curve, (0, size - curve.size)) for curve in (measured, simulated)]
    return float(np.nansum(np.abs(padded[0] - padded[1])) / np.nansum(padded[0]))


def compared(found: dict[str, Any], system: System | None = None) -> tuple[Curves, Curves, dict[str, float]]:
    """The measured curves, the simulated ones, and the errors by curve. system: the calibrated one."""
    requests = sorted(found["requests"], key=lambda request: float(request["at_s"]))
    at = np.array([request["at_s"] for request in requests])
    measured = curves(at, np.array([request["first_s"] for request in requests]))
    answer_tokens = found["settings"]["answer_tokens"]
    simulated = curves(at, predicted(requests, answer_tokens, system or calibrated(found["calibration"])))
    errors = {name: error(getattr(measured, name), getattr(simulated, name)) for name in Curves._fields}
    return measured, simulated, errors


def main() -> None:
    found = load_step()
    measured, simulated, errors = compared(found)
    print(calibrated(found["calibration"]))
    for name in Curves._fields:
        rows = zip(getattr(measured, name), getattr(simulated, name), strict=False)
        for number, (real, virtual) in enumerate(rows):
            print(f"{name:8} {number * BIN_S:5.0f} s {real:8.2f} {virtual:8.2f}")
        print(f"{name}: error {errors[name]:.1%}")


if __name__ == "__main__":
    main()
