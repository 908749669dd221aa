"""A day on Skim, on Skim with plain scaling of each pool, and on plain vLLM, with the same GPUs at most: the answer."""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from cluster.config.pools import AutoscalingConfig
from cluster.plan.engine import Engine
from cluster.plan.gpus import GIB
from cluster.plan.pools import MAX_ROWS, Load
from cluster.plan.simulate.day import MODES, Day, System, simulate
from cluster.plan.simulate.pool import PoolPlan
from cluster.plan.simulate.traffic import Traffic
from cluster.plan.size import RANKS, Sizer
from cluster.serve.autoscaling import UTILISATION
from skim_common.errors import SkimError
from skim_common.models.costs import Read

SYSTEMS = {
    "skim": "Skim, policy work",
    "skim_plain_scaling": "Skim, policy requests",
    "plain": "plain vLLM, policy requests",
}
BIN_S = 900.0
"""Seconds of a point of the curves."""


def compare(
    sizer: Sizer,
    load: Load,
    traffic: Traffic,
    *,
    scaling: Mapping[str, AutoscalingConfig],
    min_prompt_tokens: int,
    max_wait_s: float,
    start_s: float,
) -> dict[str, Any]:
    """The three systems, each with at most the GPUs that Skim needs for the busiest hour. Raises SkimError.

    load: SLOs and keep rate; the rest is that of the busiest hour (`Traffic.busiest`). scaling: of the pools that
    have settings of their own. start_s: from the decision for a replica until it serves.
    """
    qps, prompt, answer = traffic.busiest()
    load = replace(load, qps=qps, prompt=prompt, answer=answer)
    plan = sizer.skim(load, 0)
    if plan is None or plan.speculator is None:
        raise SkimError("no number of these GPUs keeps the SLOs in the busiest hour with Skim: see skim plan size")
    target, speculator = (
        _plan(sizer, sizer.engine(model, pool.ranks), pool.replicas, tokens + load.answer)
        for model, pool, tokens in (
            (sizer.target, plan.target, sizer.kept(load)),
            (sizer.speculator, plan.speculator, load.prompt),
        )
    )
    base = System(
        target,
        speculator,
        keep_rate=load.keep_rate,
        skim_s=sizer.machine.skim_s,
        min_prompt_tokens=min_prompt_tokens,
        max_wait_s=max_wait_s,
        start_s=start_s,
    )
    systems = {"plain": _plain(sizer, load, plan.gpus, base, scaling.get("target"))}
    for system, policy in (("skim", "work"), ("skim_plain_scaling", "requests")):
        systems[system] = replace(
            base,
            target=_scaled(target, scaling.get("target"), policy, load, sizer.kept(load)),
            speculator=_scaled(speculator, scaling.get("speculator"), policy, load, load.prompt, answers=False),
        )
    found = {name: _told(traffic, load, systems[name], simulate(traffic, systems[name])) for name in SYSTEMS}
    return {
        "target": sizer.target.name,
        "speculator": sizer.speculator.name,
        "gpu": asdict(sizer.gpu),
        "load": asdict(load),
        "hours": traffic.seconds / 3600,
        "requests": round(traffic.at.size / traffic.share),
        "simulated_share": traffic.share,
        "most_gpus": plan.gpus,
        "systems": found,
        "requests_per_second": _rates(traffic),
        "verdict": verdict(found),
    }


def verdict(systems: Mapping[str, Mapping[str, Any]]) -> str:
    """Share within the SLOs and GPU hours of the three systems, in a sentence."""
    skim, requests, plain = (
        f"{found['within']:.1%} within the SLOs for {sum(found['gpu_hours'].values()):,.0f} GPU hours"
        for found in (systems[name] for name in SYSTEMS)
    )
    return f"Skim: {skim}; with plain scaling: {requests}; plain vLLM: {plain}."


def _plan(sizer: Sizer, engine: Engine, replicas: int, tokens: int) -> PoolPlan:
    """A pool of prompts with answers of `tokens` tokens. Raises SkimError if none fits into its memory."""
    memory = engine.memory(sizer.gpu, tokens, rows=MAX_ROWS, captures=engine.model is sizer.speculator)
    if memory is None:
        raise SkimError(f"model {engine.model.name} does not fit into {engine.ranks} x {sizer.gpu.name}")
    held = memory.kv * GIB / engine.kv_bytes(tokens) * tokens
    return PoolPlan(engine, engine.ranks, replicas, held, MAX_ROWS)


def _plain(sizer: Sizer, load: Load, gpus: int, base: System, scaling: AutoscalingConfig | None) -> System:
    """Plain vLLM on at most `gpus` GPUs. If they cannot carry the load: on as few ranks as it fits into."""
    plan, tokens = sizer.plain_on(gpus, load), load.prompt + load.answer
    fitting = (n for n in RANKS if sizer.engine(sizer.target, n).memory(sizer.gpu, tokens, rows=MAX_ROWS))
    ranks = plan.target.ranks if plan else next(fitting, RANKS[-1])
    pool = _plan(sizer, sizer.engine(sizer.target, ranks), gpus // ranks, tokens)
    return replace(base, target=_scaled(pool, scaling, "requests", load, load.prompt), speculator=None)


def _scaled(
    pool: PoolPlan, given: AutoscalingConfig | None, policy: str, load: Load, read: int, *, answers: bool = True
) -> PoolPlan:
    """The pool with its settings for a policy. read: tokens of a prompt that it reads.

    Without given settings, each replica shall have as many requests as it has at the planned load if no other request
    slows them down, and a new one shall wait for half of the SLO. An answer counts with its whole work until it ends,
    so its time is added to `drain_s`.
    """
    changes: dict[str, Any] = {"policy": policy, "min_replicas": 1, "max_replicas": pool.replicas}
    if given is None:
        answer_s = load.answer * pool.engine.step_s(1, read + load.answer / 2) if answers else 0.0
        ongoing = load.qps / pool.replicas * (pool.engine.read_s(Read(read)) + answer_s)
        changes |= {"target_ongoing_requests": ongoing, "drain_s": load.slo_ttft / 2 + answer_s}
        changes["batch"] = max(1, round(ongoing / UTILISATION)) if answers else 1
    return replace(pool, scaling=(given or AutoscalingConfig()).model_copy(update=changes))


def _told(traffic: Traffic, load: Load, system: System, day: Day) -> dict[str, Any]:
    soon, fast = day.first <= load.slo_ttft, day.tpot <= load.slo_tpot
    met = soon & fast
    edges = _edges(traffic)
    place = np.searchsorted(edges, traffic.at, side="right") - 1
    count = np.bincount(place, minlength=edges.size - 1)
    within = np.bincount(place, met, minlength=edges.size - 1) / np.maximum(count, 1)
    answered = day.first[np.isfinite(day.first)]
    ticks = np.minimum(edges[:-1] / system.tick_s, min(map(len, day.replicas.values())) - 1).astype(int)
    return {
        "within": float(met.mean()),
        "within_ttft": float(soon.mean()),
        "within_tpot": float((fast & np.isfinite(day.first)).mean()),
        "refused": float(np.isinf(day.first).mean()),
        "first_token_s": {name: float(np.percentile(answered, of)) for name, of in (("median", 50), ("p99", 99))},
        "speculative": float((day.mode == MODES.index("speculative")).mean()),
        "gpu_hours": day.gpu_hours,
        "most_replicas": {name: max(counts) for name, counts in day.replicas.items()},
        "curves": {
            "within": [round(share, 4) for share in within.tolist()],
            "replicas": {name: [counts[tick] for tick in ticks] for name, counts in day.replicas.items()},
        },
    }


def _edges(traffic: Traffic) -> np.ndarray:
    """The bounds of the points of the curves, seconds."""
    return np.linspace(0, traffic.seconds, max(1, round(traffic.seconds / BIN_S)) + 1)


def _rates(traffic: Traffic) -> list[float]:
    edges = _edges(traffic)
    return [float(rate) for rate in np.histogram(traffic.at, edges)[0] / np.diff(edges) / traffic.share]
