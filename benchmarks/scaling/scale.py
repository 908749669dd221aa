"""Autoscaling under a step of the load: replicas, waiting requests and time to first token, over time.

Runs a real deployment with router, Ray Serve and its autoscaler. The engines run no model; the time of a request in
each pool is a setting, and a replica works on `SLOTS` requests at a time. So a machine without GPUs shows how the pools
scale. The load is light, then `rate` requests per second, then light again, with Poisson arrivals from vLLM's load
generator. A phase ends when its last request is answered.

*Waiting*: requests that were sent and have no first token yet. *PromptGroup*: replicas that run or start. *Changes of
direction*: how often a pool changed between growing and shrinking after the step began; one is expected, when the load
or a backlog ends. *Objective*: time to first token of an idle deployment plus `WAIT_S` in each of the two pools. It is
*met again* when the first of those requests is sent from which on every request meets it.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness.load_generator import Load, send
from benchmarks.report import plots
from benchmarks.report.machine import machine
from benchmarks.report.progress import Progress, silent
from benchmarks.scaling.deployment import NAME, PROMPT_TOKENS, SLOTS, ScaleSettings, deployment
from benchmarks.scaling.documents import Questions, described, send_questions, shared
from benchmarks.scaling.summary import POOLS, summary, waiting
from benchmarks.scaling.watch import SETTLE_S, watched
from cluster.serve.deployment import deployed
from skim_common.models.source import local_folder, public_name

_LIGHT = 0.4
_BEFORE_S, _AFTER_S = 12.0, 60.0
_USABLE_IDS = range(10, 900)
"""Token ids that every vocabulary has."""


def run(settings: ScaleSettings, progress: Progress = silent) -> dict[str, Any]:
    """Measure; takes `step_s` plus about two and a half minutes. Raises SkimError.

    `requests`: for each request when it was sent, its time to first token and whether it failed. `samples`: replicas of
    each pool, once per second. `taken`: the requests of each replica, with the warm-up; `at_home`: see `Counts`. All
    times are seconds since the first request.
    """
    began = machine()
    load = Load(Path(local_folder(settings.target, weights=False)), NAME, PROMPT_TOKENS, 1, settings.seed)
    progress("starting", 0.0)
    with deployed(deployment(settings), progress=lambda line: None) as url:
        send(load, url, 1, {})  # warm-up
        phases = {"before": (_LIGHT, _BEFORE_S), "step": (settings.rate, settings.step_s), "after": (_LIGHT, _AFTER_S)}
        total = sum(seconds for _, seconds in phases.values())
        zero, done = time.perf_counter(), 0.0
        requests, begins = [], {}
        with watched(zero, url) as (samples, counts):
            for index, (phase, (rate, seconds)) in enumerate(phases.items()):
                progress(f"{phase}: {rate:g} requests/s", 0.2 + 0.8 * done / total)
                begins[phase] = time.perf_counter() - zero
                requests += _send_part(settings, load, url, (rate, seconds), settings.seed + index + 1, zero)
                done += seconds
            ends, seen = time.perf_counter() - zero, list(samples)
            progress("reading the counts of the replicas", 1.0)
            time.sleep(SETTLE_S)
    result = {"machine": began, "settings": vars(settings) | _names(settings), "begins": begins, "ends": ends}
    result |= {"taken": counts.taken(steady_sizes(settings)), "at_home": counts.at_home()}
    if settings.documents:
        result["shared"] = shared(requests)
    return result | {
        "requests": requests,
        "samples": seen,
        **summary(vars(settings), requests, seen, begins, ends),
    }


def _send_part(
    settings: ScaleSettings, load: Load, url: str, phase: tuple[float, float], seed: int, zero: float
) -> list[dict[str, Any]]:
    """The requests of one part. phase: its rate and its length in seconds."""
    rate, seconds = phase
    count = max(2, round(rate * seconds))
    if settings.documents:
        questions = Questions(NAME, settings.documents, PROMPT_TOKENS, _USABLE_IDS)
        return send_questions(questions, url, count, rate=rate, seed=seed, zero=zero)
    of_part = Load(load.tokenizer, NAME, PROMPT_TOKENS, 1, seed)
    return requests_of(send(of_part, url, count, {}, rate=rate), zero)


def requests_of(sent: Mapping[str, Any], zero: float) -> list[dict[str, Any]]:
    """The requests of one phase. sent: the load generator's result. zero: time.perf_counter() at the first request."""
    rows = zip(sent["start_times"], sent["ttfts"], sent["errors"], strict=True)
    return [
        {"s": start - zero, "ttft_s": None if error else ttft, "failed": bool(error)} for start, ttft, error in rows
    ]


def describe(result: dict[str, Any]) -> str:
    """The conditions, what the pools did, when the objective was met again, and how the requests spread."""
    settings, met = result["settings"], result["objective_met_again_after_s"]
    about = ""
    if "shared" in result:
        about = described(result["shared"], settings["documents"], settings["affinity"])
    back = "was not met again" if met is None else f"was met again by all requests sent after {met:.0f} s"
    return (
        f"{_pools(settings)} The load rises from {_LIGHT:g} to {settings['rate']:g} requests/s "
        f"for {settings['step_s']:.0f} s and falls back. The engines run no model: each request takes "
        f"{settings['speculator_s']:g} s on a speculator and {settings['target_s']:g} s on a target, and a replica "
        f"works on {SLOTS} requests at a time. {about}The table shows the replicas at the end of each part. Times "
        f"count from the start of the step. {'' if settings['fixed'] else _scaled(result)}"
        f"The objective for the first token, {result['objective_s']:g} s, {back}. {_spread(result)}"
    )


def _pools(settings: Mapping[str, Any]) -> str:
    routers, sizes = _number(settings, "router"), f"{_number(settings, 'speculator')} and {_number(settings, 'target')}"
    if settings["fixed"]:
        return f"{routers}, {sizes} all the time."
    return f"{routers}. Each pool starts with 1 replica; at most {sizes}."


def _number(settings: Mapping[str, Any], part: str) -> str:
    number = settings[f"{part}s"]
    return f"{number} {part}{'s' * (number != 1)}"


def _scaled(result: Mapping[str, Any]) -> str:
    """The sentences about autoscaling."""
    first = "grew first" if result["short_pool_grew_first"] else "did not grow first"
    changes = " and ".join(f"{result['direction_changes'][pool]} ({pool})" for pool in POOLS)
    return (
        f"The pool with less capacity, the {result['short_pool']}, {first}: "
        f"{', '.join(_growth(result, pool) for pool in POOLS)}. Changes of direction from the step on: {changes}"
        f"{', so no pool oscillated' * result['calm']}. "
    )


def _spread(result: Mapping[str, Any]) -> str:
    """The sentences about the requests of each replica."""
    taken = "; ".join(f"{part}s {', '.join(map(str, counts))}" for part, counts in result["taken"].items())
    late = "" if result["settings"]["fixed"] else ", where later ones have fewer"
    text = f"Requests of each replica, with one warm-up{late}: {taken}."
    if result["at_home"]:
        shares = " and ".join(f"{share:.0%} ({pool})" for pool, share in result["at_home"].items())
        text += f" Calls that went to the replica which their prefix prefers: {shares}."
    return text


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
        (_bars if result["settings"]["fixed"] else _sizes)(replicas, result)
        queue.step(times, [waiting(requests, at) for at in times], where="post", marker="")
        queue.set(ylabel="waiting requests", ylim=(0, None))
        answered = [request for request in requests if request["ttft_s"] is not None]
        first.plot([request["s"] for request in answered], [request["ttft_s"] for request in answered], ls="", ms=3)
        first.axhline(result["objective_s"], color="#555555", linestyle="--", linewidth=1, marker="")
        first.set(ylabel="first token, s", ylim=(0, None), xlabel="seconds; requests at the time they were sent")
        for axes in (queue, first) if result["settings"]["fixed"] else (replicas, queue, first):
            for phase in ("step", "after"):
                axes.axvline(result["begins"][phase], color="#555555", linewidth=1, marker="")
            axes.set_xlim(0, result["ends"])


def _sizes(axes: Any, result: Mapping[str, Any]) -> None:
    """Replicas of each pool over time."""
    samples = result["samples"]
    times = [sample["s"] for sample in samples]
    for pool, colour in zip(POOLS, plots.COLOURS, strict=False):
        running, asked = ([sample[key] for sample in samples] for key in (pool, f"{pool}_asked"))
        axes.step(times, running, where="post", color=colour, marker="", label=f"{pool}, running")
        axes.step(times, asked, where="post", color=colour, marker="", ls=":", label=f"{pool}, running or starting")
    axes.set(ylabel="replicas", ylim=(0, None))
    # Its white ground hides the line at the begin of the step.
    axes.legend(ncols=2, fontsize=9, frameon=True, framealpha=1, edgecolor="none", borderpad=0.1)


def _bars(axes: Any, result: Mapping[str, Any]) -> None:
    """Requests of each replica."""
    for colour, (part, counts) in zip(plots.COLOURS[2::-1], result["taken"].items(), strict=True):
        names = [f"{part} {number}" for number in range(1, len(counts) + 1)]
        axes.bar_label(axes.bar(names, counts, color=colour), fontsize=9)
    axes.tick_params(axis="x", labelsize=8)
    axes.margins(y=0.15)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="requests", title="Requests of each replica, most first")


def steady_sizes(settings: ScaleSettings) -> dict[str, int]:
    """Replicas that run all the time, by part."""
    pools = {"speculator": settings.speculators, "target": settings.targets} if settings.fixed else {}
    return {"router": settings.routers, **pools}


def _names(settings: ScaleSettings) -> dict[str, str]:
    return {"target": public_name(settings.target), "speculator": public_name(settings.speculator)}
