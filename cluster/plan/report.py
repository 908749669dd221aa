"""What `skim plan size` answers: the plans as plain data, and what they say about Skim in sentences. Pure."""

from dataclasses import asdict
from typing import Any

from cluster.plan.formulas import MOST_DRAFTS, speed_up
from cluster.plan.pools import PlannedLoad, Pool, draft_step_s
from cluster.plan.size import Plan, Sizer

MEDIAN_ERRORS = {"ttft": 0.042, "turns": 0.044, "decode": 0.413, "gpu-ttft": 0.028}
"""Median error of the same formulas by kind of measurement. `python -m benchmarks.report.planned` computes them."""
DEFAULT = "what the default kept of prompts of this length, with Qwen2.5-Coder 0.5B for 1.5B"


def answer(sizer: Sizer, load: PlannedLoad, drafts: int | None = None) -> dict[str, Any]:
    """The plans and the verdict. drafts: K, or None for the best."""
    skim, plain = sizer.skim(load, drafts), sizer.plain(load)
    same = sizer.plain_on(skim.gpus, load) if skim else None
    against = same or plain
    pays_from = sizer.pays_from(load, skim, against) if skim and against else None
    return {
        "target": sizer.target.name,
        "speculator": sizer.speculator.name,
        "gpu": asdict(sizer.gpu),
        "load": asdict(load),
        "skim": _shown(skim, load),
        "plain": _shown(plain, load),
        "plain_on_the_same_gpus": _shown(same, load),
        "drafts": _drafts(sizer, load, skim),
        "pays_from_tokens": pays_from,
        "verdict": verdict(load, skim, plain, same),
        "median_errors": MEDIAN_ERRORS,
        "assumptions": _assumptions(sizer, load),
    }


def verdict(load: PlannedLoad, skim: Plan | None, plain: Plan | None, same: Plan | None) -> str:
    """Whether Skim pays for this load, in a sentence. same: plain vLLM on as many GPUs as `skim` has."""
    if skim is None:
        if plain is None:
            return "Neither Skim nor plain vLLM keeps these SLOs on this GPU: relax them, or choose another GPU."
        return f"Skim does not pay: it cannot keep these SLOs, and plain vLLM keeps them on {_gpus(plain)}."
    if plain is None:
        return f"Skim pays: {_gpus(skim)} keep these SLOs, and no number of GPUs does with plain vLLM."
    if plain.gpus < skim.gpus:
        sooner = f", although its first token is {plain.first - skim.first:.2f} s sooner" * (skim.first < plain.first)
        return f"Skim does not pay: plain vLLM keeps these SLOs on {_gpus(plain)}, Skim needs {skim.gpus}{sooner}."
    if plain.gpus == skim.gpus and same is not None and same.first <= skim.first:
        return f"Skim does not pay: plain vLLM on {_gpus(plain)} has the first token no later."
    if plain.gpus == skim.gpus:
        return f"Skim pays in time, not in GPUs: its first token is {plain.first / skim.first:.1f} times as soon."
    return f"Skim pays: it needs {skim.gpus} GPUs for this load, plain vLLM {plain.gpus}."


def _gpus(plan: Plan) -> str:
    return f"{plan.gpus} GPU{'s' * (plan.gpus != 1)}"


def _shown(plan: Plan | None, load: PlannedLoad) -> dict[str, Any] | None:
    if plan is None:
        return None
    shown = {
        "gpus": plan.gpus,
        "first_token_s": plan.first,
        "per_token_s": plan.target.tpot,
        "keeps_the_slos": plan.keeps(load),
        "drafts": plan.drafts,
        "target": _pool(plan.target),
    }
    if plan.speculator:
        shown["speculator"] = _pool(plan.speculator)
    return shown


def _pool(pool: Pool) -> dict[str, Any]:
    return {
        "tensor_parallel": pool.ranks,
        "replicas": pool.replicas,
        "wait_s": pool.wait,
        "prefill_s": pool.service,
        "busy": pool.busy,
        "rows": pool.rows,
        "memory_gib": asdict(pool.memory),
    }


def _drafts(sizer: Sizer, load: PlannedLoad, skim: Plan | None) -> dict[str, Any] | None:
    """K for one answer at a time and its speed-up, on the engines of the plan."""
    if skim is None or skim.speculator is None:
        return None
    target = sizer.engine(sizer.target, skim.target.ranks)
    speculator = sizer.engine(sizer.speculator, skim.speculator.ranks)
    best = sizer.best_drafts(target, speculator, load)
    step = target.step_s(1, sizer.kept(load))
    draft, exchange = draft_step_s(speculator, load, 1) / step, target.machine.exchange_s / step
    speeds = [speed_up(load.acceptance, k, draft, exchange=exchange) for k in range(MOST_DRAFTS + 1)]
    return {"best_alone": best, "speed_up_alone": speeds[best], "speed_ups": speeds, "in_the_plan": skim.drafts}


def _assumptions(sizer: Sizer, load: PlannedLoad) -> list[str]:
    known = "measured on this GPU" if sizer.gpu.measured else "measured on an H200 and assumed for this GPU"
    read = "as a whole"
    if sizer.windows:
        read = "in windows, as one with a head profile does, on one replica"
        read += ", and the best of several windows once more" * sizer.again
    return [
        f"Prefill: efficiencies {known}, with two models and without CUDA graphs.",
        f"The speculator reads a prompt {read}.",
        "Decoding, tensor parallelism, exchanges of drafts, batches: by formula; not measured on a GPU.",
        "Times are means under Poisson arrivals of equal prompts. Nothing comes from a prefix cache.",
        *([f"Kept: {DEFAULT}."] if load.by_default else []),
    ]
