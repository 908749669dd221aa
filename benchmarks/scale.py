"""Pools that follow a step of the load: replicas, requests that wait, and the time to first token, over time.

Real deployments through router, Serve and its autoscaler, on engines without a model whose costs are set: a replica of
either pool works on `SLOTS` requests at a time, and each takes what the settings say, so that a machine without GPUs
shows what a pool does. The load is light, then `rate` requests a second, then light again, with Poisson arrivals from
vLLM's own load generator; a phase ends when its last request is answered.

*Waiting*: requests that were sent and have no first token yet. *Asked*: replicas that run or start. *Changes of
direction*: of a pool's size, from the step on; one is the end of the load, or of a backlog. *Objective*: idle, plus
`drain_s` in each of the two pools. It is *met again* when the first request was sent of those from which on all met it.
"""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import plots
from benchmarks.machine import machine
from benchmarks.progress import Progress, silent
from benchmarks.scale_summary import POOLS, summary, waiting
from benchmarks.vllm_load import Load, send
from cluster.config.schema import DeploymentConfig
from cluster.serve.app import APP_NAME
from cluster.serve.deployment import deployed
from cluster.serve.preflight import free_port

SLOTS = 2
MAX_REPLICAS = {"speculator": 4, "target": 3}
"""Replicas that a pool may have."""

_NAME = "bench"
_PROMPT_TOKENS = 1536
_LIGHT = 0.4
_BEFORE_S, _AFTER_S = 12.0, 60.0
_INTERVAL_S = 1.0


@dataclass(frozen=True)
class ScaleSettings:
    """target, speculator: folders, of which config and tokenizer are read. *_s: what a request takes in each pool.

    rate: requests per second of the step. step_s: how long it lasts. policy, drain_s: of `autoscaling`.
    """

    target: str
    speculator: str
    policy: str = "work"
    rate: float = 2.0
    step_s: float = 75.0
    speculator_s: float = 2.0
    target_s: float = 1.0
    drain_s: float = 3.0
    seed: int = 0


def run(settings: ScaleSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; takes `step_s` and a bit over two minutes. Raises SkimError.

    `requests`: when each was sent, its time to first token and whether it failed; `samples`: replicas of each pool, one
    a second. All times in seconds from the first request.
    """
    began = machine()
    load = Load(Path(settings.target), _NAME, _PROMPT_TOKENS, 1, settings.seed)
    progress("starting", 0.0)
    with deployed(_deployment(settings), progress=lambda line: None) as url:
        send(load, url, 1, {})  # what is slow the first time
        phases = {"before": (_LIGHT, _BEFORE_S), "step": (settings.rate, settings.step_s), "after": (_LIGHT, _AFTER_S)}
        total = sum(seconds for _, seconds in phases.values())
        zero, done = time.perf_counter(), 0.0
        requests, begins = [], {}
        with _replicas(zero) as samples:
            for index, (phase, (rate, seconds)) in enumerate(phases.items()):
                progress(f"{phase}: {rate:g} requests/s", 0.2 + 0.8 * done / total)
                begins[phase] = time.perf_counter() - zero
                of_phase = Load(load.tokenizer, _NAME, _PROMPT_TOKENS, 1, settings.seed + index + 1)
                sent = send(of_phase, url, max(2, round(rate * seconds)), {}, rate=rate)
                requests += requests_of(sent, zero)
                done += seconds
            ends = time.perf_counter() - zero
    result = {"machine": began, "settings": vars(settings) | _folders(settings), "begins": begins, "ends": ends}
    return result | {
        "requests": requests,
        "samples": samples,
        **summary(vars(settings), requests, samples, begins, ends),
    }


def requests_of(sent: Mapping[str, Any], zero: float) -> list[dict[str, Any]]:
    """The requests of one phase. zero: the clock (time.perf_counter) at the first request."""
    rows = zip(sent["start_times"], sent["ttfts"], sent["errors"], strict=True)
    return [
        {"s": start - zero, "ttft_s": None if error else ttft, "failed": bool(error)} for start, ttft, error in rows
    ]


def describe(result: dict[str, Any]) -> str:
    """What was measured, which pool grew first, when the objective was met again, and whether it was calm."""
    settings, met = result["settings"], result["objective_met_again_after_s"]
    first = "grew first" if result["short_pool_grew_first"] else "did not grow first"
    back = "was not met again" if met is None else f"was met by all requests from {met:.0f} s after the step's begin on"
    return (
        f"Policy `{settings['policy']}`: from {_LIGHT:g} to {settings['rate']:g} requests/s for "
        f"{settings['step_s']:.0f} s and back, on engines without a model: {settings['speculator_s']:g} s per request "
        f"in the speculator pool, {settings['target_s']:g} s in the target pool, {SLOTS} at a time per replica; from 1 "
        f"to {MAX_REPLICAS['speculator']} and {MAX_REPLICAS['target']} replicas. The pool that was short, "
        f"the {result['short_pool']}, {first}: {', '.join(_growth(result, pool) for pool in POOLS)}. "
        "The objective for the first token, "
        f"{result['objective_s']:g} s, {back}. Changes of direction from the step on: "
        + " and ".join(f"{result['direction_changes'][pool]} ({pool})" for pool in POOLS)
        + (", so nothing oscillated." if result["calm"] else ".")
    )


def _growth(result: Mapping[str, Any], pool: str) -> str:
    after = result["first_growth_s"][pool]
    return f"{pool} " + ("never" if after is None else f"after {after:.0f} s")


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows: one per part of the run."""
    columns = ["part", "requests", "failed", "first token s", "p90 s", "most waiting", "speculators", "targets"]
    rows = [
        [
            row["part"],
            str(row["requests"]),
            str(row["failed"]),
            _shown(row["ttft_median_s"], ".1f"),
            _shown(row["ttft_p90_s"], ".1f"),
            str(row["most_waiting"]),
            _shown(row["speculator_at_end"], "d"),
            _shown(row["target_at_end"], "d"),
        ]
        for row in result["rows"]
    ]
    return columns, rows


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def plot(result: dict[str, Any], path: Path) -> None:
    """Replicas, waiting requests and times to first token, over time."""
    samples, requests = result["samples"], result["requests"]
    times = [sample["s"] for sample in samples]
    with plots.figure(path, result, rows=3, height=7.5) as [replicas, queue, first]:
        for pool, colour in zip(POOLS, plots.COLOURS, strict=False):
            running, asked = ([sample[key] for sample in samples] for key in (pool, f"{pool}_asked"))
            replicas.step(times, running, where="post", color=colour, marker="", label=f"{pool}, running")
            replicas.step(times, asked, where="post", color=colour, marker="", ls=":", label=f"{pool}, asked")
        replicas.set(ylabel="replicas", ylim=(0, None), title=f"Policy {result['settings']['policy']}")
        replicas.legend(ncols=2, fontsize=9)
        queue.step(times, [waiting(requests, at) for at in times], where="post", marker="")
        queue.set(ylabel="waiting requests", ylim=(0, None))
        answered = [request for request in requests if request["ttft_s"] is not None]
        first.plot([request["s"] for request in answered], [request["ttft_s"] for request in answered], ls="", ms=3)
        first.axhline(result["objective_s"], color="#555555", linestyle="--", linewidth=1, marker="")
        first.set(ylabel="first token, s", ylim=(0, None), xlabel="seconds; requests by when they were sent")
        for axes in (replicas, queue, first):
            for phase in ("step", "after"):
                axes.axvline(result["begins"][phase], color="#555555", linewidth=1, marker="")
            axes.set_xlim(0, result["ends"])


@contextmanager
def _replicas(zero: float) -> Iterator[list[dict[str, float]]]:
    """The replicas of each pool, looked at in the background; the list grows while the context lasts."""
    samples: list[dict[str, float]] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(_INTERVAL_S):
            if (sample := _look()) is not None:
                samples.append({"s": time.perf_counter() - zero, **sample})

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield samples
    finally:
        over.set()
        watcher.join()


def _look() -> dict[str, int] | None:
    """None when the controller does not answer in time: one point less."""
    from ray import serve
    from ray.exceptions import RayError
    from ray.serve.exceptions import RayServeException

    try:
        found = serve.status().applications[APP_NAME].deployments
        states = {pool: found[pool].replica_states for pool in POOLS}
    except (RayError, RayServeException, KeyError):
        return None
    running = {pool: states[pool].get("RUNNING", 0) for pool in POOLS}
    return running | {f"{pool}_asked": running[pool] + states[pool].get("STARTING", 0) for pool in POOLS}


def _deployment(settings: ScaleSettings) -> DeploymentConfig:
    scaling = {
        "policy": settings.policy,
        "drain_s": settings.drain_s,
        "batch": SLOTS,
        "target_ongoing_requests": SLOTS,
        "upscale_delay_s": 2,
        "downscale_delay_s": 15,
        "look_back_period_s": 5,
        "metrics_interval_s": 1,
    }
    pool = {
        "engine": "mock",
        "cpus_per_replica": 0.1,
        "max_ongoing_requests": SLOTS,
        "drain_timeout_s": 10,
        "env": {"OMP_NUM_THREADS": "1"},
    }
    costs = {
        "speculator": {"latency_ms": 1e3 * settings.speculator_s},
        "target": {"prefill_ms": 1e3 * settings.target_s},
    }
    pools = {
        name: {
            **pool,
            "model": getattr(settings, name),
            "autoscaling": {**scaling, "max_replicas": MAX_REPLICAS[name]},
            "engine_options": costs[name],
        }
        for name in POOLS
    }
    # A wait is what is measured: nothing is given up.
    router = {"port": free_port(), "cpus": 0.1, "select_timeout_s": 300, "admission_timeout_s": 300}
    return DeploymentConfig.model_validate(
        {"served_model_name": _NAME, "decode": {"method": "none"}, "router": router, **pools}
    )


def _folders(settings: ScaleSettings) -> dict[str, str]:
    return {"target": Path(settings.target).name, "speculator": Path(settings.speculator).name}
