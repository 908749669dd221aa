"""A day on Skim, on Skim with plain scaling of each pool, and on plain vLLM, with the same GPUs at most: the answer."""

from dataclasses import asdict, replace
from typing import Any

import numpy as np

from benchmarks.scaling.simulated_day.day import MODES, Day, System, simulate
from benchmarks.scaling.simulated_day.pool import PoolPlan
from benchmarks.scaling.simulated_day.traffic import Traffic
from cluster.config.pools import AutoscalingConfig
from cluster.plan.engine import Engine
from cluster.plan.gpus import GIB
from cluster.plan.pools import MAX_ROWS, Load
from cluster.plan.size import RANKS, Sizer
from cluster.serve.autoscaling import UTILISATION
from skim_common.errors import SkimError
from skim_common.models.costs import Read

SYSTEMS = {
    "skim": "Skim, policy work",
    "skim_plain_scaling": "Skim, policy requests",
    "plain": "plain vLLM, policy requests",
}


def compare(sizer: Sizer, load: Load, traffic: Traffic) -> dict[str, Any]:
    """The three systems, each with at most the GPUs that Skim needs for the busiest hour. Raises SkimError.

    load: SLOs and keep rate; the rest is that of the busiest hour (`Traffic.busiest`).
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
    base = System(target, speculator, keep_rate=load.keep_rate, skim_s=sizer.machine.skim_s)
    systems = {"plain": _plain(sizer, load, plan.gpus, base)}
    for system, policy in (("skim", "work"), ("skim_plain_scaling", "requests")):
        systems[system] = replace(
            base,
            target=_scaled(target, policy, load, sizer.kept(load)),
            speculator=_scaled(speculator, policy, load, load.prompt, answers=False),
        )
    found = {name: _told(load, simulate(traffic, systems[name])) for name in SYSTEMS}
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
    }


def _plan(sizer: Sizer, engine: Engine, replicas: int, tokens: int) -> PoolPlan:
    """A pool of prompts with answers of `tokens` tokens. Raises SkimError if none fits into its memory."""
    memory = engine.memory(sizer.gpu, tokens, rows=MAX_ROWS, captures=engine.model is sizer.speculator)
    if memory is None:
        raise SkimError(f"model {engine.model.name} does not fit into {engine.ranks} x {sizer.gpu.name}")
    held = memory.kv * GIB / engine.kv_bytes(tokens) * tokens
    return PoolPlan(engine, engine.ranks, replicas, held, MAX_ROWS)


def _plain(sizer: Sizer, load: Load, gpus: int, base: System) -> System:
    """Plain vLLM on at most `gpus` GPUs. If they cannot carry the load: on as few ranks as it fits into."""
    plan, tokens = sizer.plain_on(gpus, load), load.prompt + load.answer
    fitting = (n for n in RANKS if sizer.engine(sizer.target, n).memory(sizer.gpu, tokens, rows=MAX_ROWS))
    ranks = plan.target.ranks if plan else next(fitting, RANKS[-1])
    pool = _plan(sizer, sizer.engine(sizer.target, ranks), gpus // ranks, tokens)
    return replace(base, target=_scaled(pool, "requests", load, load.prompt), speculator=None)


def _scaled(pool: PoolPlan, policy: str, load: Load, read: int, *, answers: bool = True) -> PoolPlan:
    """The pool with its settings for a policy. read: tokens of a prompt that it reads.

    Each replica shall have as many requests as it has at the planned load if no other request slows them down, and a
    new one shall wait for half of the SLO. An answer counts with its whole work until it ends, so its time is added to
    `drain_s`.
    """
    answer_s = load.answer * pool.engine.step_s(1, read + load.answer / 2) if answers else 0.0
    ongoing = load.qps / pool.replicas * (pool.engine.read_s(Read(read)) + answer_s)
    scaling = AutoscalingConfig(
        policy=policy,
        min_replicas=1,
        max_replicas=pool.replicas,
        target_ongoing_requests=ongoing,
        drain_s=load.slo_ttft / 2 + answer_s,
        batch=max(1, round(ongoing / UTILISATION)) if answers else 1,
    )
    return replace(pool, scaling=scaling)


def _told(load: Load, day: Day) -> dict[str, Any]:
    soon, fast = day.first <= load.slo_ttft, day.tpot <= load.slo_tpot
    answered = day.first[np.isfinite(day.first)]
    return {
        "within": float((soon & fast).mean()),
        "within_ttft": float(soon.mean()),
        "within_tpot": float((fast & np.isfinite(day.first)).mean()),
        "refused": float(np.isinf(day.first).mean()),
        "first_token_s": {name: float(np.percentile(answered, of)) for name, of in (("median", 50), ("p99", 99))},
        "speculative": float((day.mode == MODES.index("speculative")).mean()),
        "gpu_hours": day.gpu_hours,
        "most_replicas": {name: max(counts) for name, counts in day.replicas.items()},
    }
