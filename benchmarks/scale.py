"""Autoscaling under a step of the load: replicas, waiting requests and time to first token, over time.

Runs a real deployment with router, Ray Serve and its autoscaler. The engines run no model; the time of a request in
each pool is a setting, and a replica works on `SLOTS` requests at a time. So a machine without GPUs shows how the pools
scale. The load is light, then `rate` requests per second, then light again, with Poisson arrivals from vLLM's load
generator. A phase ends when its last request is answered.

*Waiting*: requests that were sent and have no first token yet. *Asked*: replicas that run or start. *Changes of
direction*: how often a pool changed between growing and shrinking after the step began; one is expected, when the load
or a backlog ends. *Objective*: time to first token of an idle deployment plus `drain_s` in each of the two pools. It is
*met again* when the first of those requests is sent from which on every request meets it.
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
from benchmarks.scale_documents import Questions, described, send_questions, shared
from benchmarks.scale_summary import POOLS, summary, waiting
from benchmarks.vllm_load import Load, send
from cluster.config.schema import DeploymentConfig
from cluster.serve.app import APP_NAME
from cluster.serve.deployment import deployed
from cluster.serve.preflight import free_port
from kv_transfer.model_source import local_folder, public_name

SLOTS = 2
MAX_REPLICAS = {"speculator": 4, "target": 3}
"""Largest number of replicas of each pool."""

_NAME = "bench"
_PROMPT_TOKENS = 1536
_LIGHT = 0.4
_BEFORE_S, _AFTER_S = 12.0, 60.0
_INTERVAL_S = 1.0
_KEEP_RATE = 0.2
_CACHED_PROMPTS = 16
"""Prompts that a replica's prefix cache holds, where documents are shared."""
_USABLE_IDS = range(10, 900)
"""Token ids that every vocabulary has."""


@dataclass(frozen=True)
class ScaleSettings:
    """target, speculator: folders or hub names; only config and tokenizer are read. rate: requests per second during
    the step. step_s: length of the step in seconds. speculator_s, target_s: seconds that a request takes in each pool.

    policy, drain_s: those of the section `autoscaling`. documents: the requests of a part share so many documents, the
    engines have prefix caches, and the router chooses the mode; 0: nothing is shared, and every prompt is speculative.
    affinity: as `router.affinity`.
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
    documents: int = 0
    affinity: bool = True


def run(settings: ScaleSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; takes `step_s` plus a little more than two minutes. Raises SkimError.

    `requests`: for each request when it was sent, its time to first token and whether it failed. `samples`: replicas of
    each pool, once per second. All times are seconds since the first request.
    """
    began = machine()
    load = Load(Path(local_folder(settings.target, weights=False)), _NAME, _PROMPT_TOKENS, 1, settings.seed)
    progress("starting", 0.0)
    with deployed(_deployment(settings), progress=lambda line: None) as url:
        send(load, url, 1, {})  # warm-up
        phases = {"before": (_LIGHT, _BEFORE_S), "step": (settings.rate, settings.step_s), "after": (_LIGHT, _AFTER_S)}
        total = sum(seconds for _, seconds in phases.values())
        zero, done = time.perf_counter(), 0.0
        requests, begins = [], {}
        with _replicas(zero) as samples:
            for index, (phase, (rate, seconds)) in enumerate(phases.items()):
                progress(f"{phase}: {rate:g} requests/s", 0.2 + 0.8 * done / total)
                begins[phase] = time.perf_counter() - zero
                requests += _send_part(settings, load, url, (rate, seconds), settings.seed + index + 1, zero)
                done += seconds
            ends = time.perf_counter() - zero
    result = {"machine": began, "settings": vars(settings) | _names(settings), "begins": begins, "ends": ends}
    if settings.documents:
        result["shared"] = shared(requests)
    return result | {
        "requests": requests,
        "samples": samples,
        **summary(vars(settings), requests, samples, begins, ends),
    }


def _send_part(
    settings: ScaleSettings, load: Load, url: str, phase: tuple[float, float], seed: int, zero: float
) -> list[dict[str, Any]]:
    """The requests of one part. phase: its rate and its length in seconds."""
    rate, seconds = phase
    count = max(2, round(rate * seconds))
    if settings.documents:
        questions = Questions(_NAME, settings.documents, _PROMPT_TOKENS, _USABLE_IDS)
        return send_questions(questions, url, count, rate=rate, seed=seed, zero=zero)
    of_part = Load(load.tokenizer, _NAME, _PROMPT_TOKENS, 1, seed)
    return requests_of(send(of_part, url, count, {}, rate=rate), zero)


def requests_of(sent: Mapping[str, Any], zero: float) -> list[dict[str, Any]]:
    """The requests of one phase. sent: the load generator's result. zero: time.perf_counter() at the first request."""
    rows = zip(sent["start_times"], sent["ttfts"], sent["errors"], strict=True)
    return [
        {"s": start - zero, "ttft_s": None if error else ttft, "failed": bool(error)} for start, ttft, error in rows
    ]


def describe(result: dict[str, Any]) -> str:
    """The conditions, which pool grew first, when the objective was met again, and whether a pool oscillated."""
    settings, met = result["settings"], result["objective_met_again_after_s"]
    first = "grew first" if result["short_pool_grew_first"] else "did not grow first"
    about = ""
    if "shared" in result:
        about = described(result["shared"], settings["documents"], settings["affinity"])
    back = "was not met again" if met is None else f"was met again by all requests sent after {met:.0f} s"
    return (
        f"Autoscaling policy `{settings['policy']}`. The load rises from {_LIGHT:g} to {settings['rate']:g} requests/s "
        f"for {settings['step_s']:.0f} s and falls back. The engines run no model: each request takes "
        f"{settings['speculator_s']:g} s on a speculator and {settings['target_s']:g} s on a target, and a replica "
        f"works on {SLOTS} requests at a time. {about}The pools start with 1 replica and may grow to "
        f"{MAX_REPLICAS['speculator']} speculators and {MAX_REPLICAS['target']} targets; the table shows the replicas "
        "at the end of each part. Times count from the start of the step. The pool with less capacity, the "
        f"{result['short_pool']}, {first}: "
        f"{', '.join(_growth(result, pool) for pool in POOLS)}. "
        f"The objective for the first token, {result['objective_s']:g} s, {back}. "
        "Changes of direction from the step on: "
        + " and ".join(f"{result['direction_changes'][pool]} ({pool})" for pool in POOLS)
        + (", so no pool oscillated." if result["calm"] else ".")
    )


def _growth(result: Mapping[str, Any], pool: str) -> str:
    after = result["first_growth_s"][pool]
    return f"{pool} " + ("never" if after is None else f"after {after:.0f} s")


def table(result: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per part of the run."""
    columns = ["part", "requests", "failed", "median first token s", "p90 first token s", "most waiting"]
    columns += ["speculators", "targets"]
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
    """Replicas, waiting requests and time to first token, over time."""
    samples, requests = result["samples"], result["requests"]
    times = [sample["s"] for sample in samples]
    with plots.figure(path, result, rows=3, height=7.5) as [replicas, queue, first]:
        for pool, colour in zip(POOLS, plots.COLOURS, strict=False):
            running, asked = ([sample[key] for sample in samples] for key in (pool, f"{pool}_asked"))
            replicas.step(times, running, where="post", color=colour, marker="", label=f"{pool}, running")
            replicas.step(
                times, asked, where="post", color=colour, marker="", ls=":", label=f"{pool}, running or starting"
            )
        replicas.set(ylabel="replicas", ylim=(0, None), title=f"Policy {result['settings']['policy']}")
        replicas.legend(ncols=2, fontsize=9)
        queue.step(times, [waiting(requests, at) for at in times], where="post", marker="")
        queue.set(ylabel="waiting requests", ylim=(0, None))
        answered = [request for request in requests if request["ttft_s"] is not None]
        first.plot([request["s"] for request in answered], [request["ttft_s"] for request in answered], ls="", ms=3)
        first.axhline(result["objective_s"], color="#555555", linestyle="--", linewidth=1, marker="")
        first.set(ylabel="first token, s", ylim=(0, None), xlabel="seconds; requests at the time they were sent")
        for axes in (replicas, queue, first):
            for phase in ("step", "after"):
                axes.axvline(result["begins"][phase], color="#555555", linewidth=1, marker="")
            axes.set_xlim(0, result["ends"])


@contextmanager
def _replicas(zero: float) -> Iterator[list[dict[str, float]]]:
    """Sample the replicas of each pool in the background. Gives a list that grows inside the context."""
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
    """Replicas of each pool now; None if Serve's controller does not answer, which costs one sample."""
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
    costs: dict[str, dict[str, float]] = {
        "speculator": {"latency_ms": 1e3 * settings.speculator_s},
        "target": {"prefill_ms": 1e3 * settings.target_s},
    }
    if settings.documents:
        caches = {"cache_tokens": _CACHED_PROMPTS * _PROMPT_TOKENS}
        kept_tokens = _KEEP_RATE * _PROMPT_TOKENS
        costs = {
            "speculator": {"ms_per_token": 1e3 * settings.speculator_s / _PROMPT_TOKENS, **caches},
            "target": {"prefill_ms_per_token": 1e3 * settings.target_s / kept_tokens, **caches},
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
    # Waiting is what is measured, so no request times out.
    router: dict[str, Any] = {"port": free_port(), "cpus": 0.1, "select_timeout_s": 300, "admission_timeout_s": 300}
    router |= {"speculative_prefill": "auto" if settings.documents else True, "affinity": settings.affinity}
    router |= {"vllm_args": {"enable_prompt_tokens_details": True}}
    return DeploymentConfig.model_validate(
        {
            "served_model_name": _NAME,
            "selection": {"keep_rate": _KEEP_RATE},
            "decode": {"method": "none"},
            "router": router,
            **pools,
        }
    )


def _names(settings: ScaleSettings) -> dict[str, str]:
    return {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
