"""The speculator's hooks: captured queries, scores, drafts, restored positions of kept sessions."""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu.proof.engines import call, engine_options, stopped, tell_what_runs
from benchmarks.gpu.proof.models import kept_prompt, make_checkpoint, random_ids
from benchmarks.gpu.proof.target import TIE
from benchmarks.gpu.steps.checks import Checks, Settings
from benchmarks.gpu.steps.step import ROOT
from kv_transfer.messages import KeptPrompt
from kv_transfer.options import SelectionOptions
from speculator_service.engine import ScoreRequest
from speculator_service.selection.select import select
from tests.reference import scoring_oracle
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.models import load_model

DEMO = str(ROOT / "demo_models" / "speculator")
LENGTHS = (1, 31, 300, 1500)
TOY_LENGTHS = (1, 300)
OPTIONS = SelectionOptions()
DRAFTS = 8
V2 = "v1.worker.gpu.model_runner"


async def demo(settings: Settings, checks: Checks) -> None:
    """The demo pair's speculator."""
    await _speculator(DEMO, settings, checks)


async def wide(settings: Settings, checks: Checks) -> None:
    """Random weights, with the head size of most models."""
    layers = 2 if settings.toy else 8
    with tempfile.TemporaryDirectory() as folder:
        await _speculator(make_checkpoint(Path(folder), layers=layers, head_size=128), settings, checks)


def start(model: str, settings: Settings) -> Any:
    from speculator_service.vllm_backend.engine import VllmSpeculator

    return VllmSpeculator(model, **engine_options(settings))


async def _speculator(model: str, settings: Settings, checks: Checks) -> None:
    oracle = GenerationOracle(model)
    with stopped(start(model, settings)) as engine:
        await tell_what_runs(engine, settings, checks, "speculator", runner=V2, backend="FLASH_ATTN")
        with checks.part("oracle"):
            await _against_the_oracle(engine, model, oracle, TOY_LENGTHS if settings.toy else LENGTHS, checks)
        with checks.part("kernels"):
            await _kernels_against_torch(engine, settings, checks)
        await call(engine, _count_steps)
        prompts = {"full": KeptPrompt.dense(random_ids(300, 11)), "kept": kept_prompt(1200, 300, 12)}
        for name, prompt in prompts.items():
            with checks.part(f"drafts, {name}"):
                await _drafts(engine, oracle, name, prompt, checks)
        with checks.part("control: full graphs"):
            await _full_graphs(engine, settings, checks)


async def _against_the_oracle(
    engine: Any, model: str, oracle: GenerationOracle, lengths: Sequence[int], checks: Checks
) -> None:
    """Each prompt twice, cold and from the prefix cache: no NaN, the oracle's scores, look-ahead and kept set."""
    reader = load_model(model)
    differences, overlaps, tokens, right = [], [], 0, 0
    cached = 0
    for length in lengths:
        ids = random_ids(length, 7)
        for again in ("cold", "cached"):
            scores = await engine.score(ScoreRequest(f"{again}-{length}", ids, OPTIONS))
            ahead, cached = scores.look_ahead_tokens, cached + scores.cached_tokens
            expected = scoring_oracle.score(reader, ids.tolist(), OPTIONS, decoded=ahead).importance
            differences.append(np.abs(scores.importance - expected.numpy()).max())
            ours, theirs = (set(select(i, OPTIONS)[0].tolist()) for i in (scores.importance, expected))
            overlaps.append(len(ours & theirs) / len(theirs))
            tokens += len(ahead)
            right += len(ahead) - oracle.wrong_tokens(KeptPrompt.dense(ids), ahead, TIE)
    nans = sum(np.isnan(difference) for difference in differences)
    checks.judge("no NaN", nans == 0, nans, f"of {len(differences)} prompts have scores that are NaN")
    worst = max(differences) if not nans else float("nan")
    checks.judge("importance", worst < 5e-3, worst, "largest difference to the oracle, under 0.005")
    checks.judge(
        "kept set", min(overlaps) >= 0.98, min(overlaps), "of the oracle's kept tokens are kept, at least 0.98"
    )
    checks.judge("look-ahead", right >= 0.9 * tokens, right / tokens, "of the look-ahead tokens are the oracle's")
    checks.judge("prefix cache", cached > 0, cached, "prompt tokens came from the prefix cache")


async def _kernels_against_torch(engine: Any, settings: Settings, checks: Checks) -> None:
    if settings.device == "cpu":
        checks.skip("kernels against torch", "torch scores on CPU")
        return
    used = await call(engine, _kernels_are_used)
    checks.judge("kernels are used", used, int(used), "torch has not taken over")
    ids = random_ids(1500, 7)
    # Both from the prefix cache, so that the keys and queries are the same.
    fused = await engine.score(ScoreRequest("fused", ids, OPTIONS))
    await call(engine, _score_with_torch)
    plain = await engine.score(ScoreRequest("plain", ids, OPTIONS))
    difference = float(np.abs(fused.importance - plain.importance).max())
    checks.judge("kernels against torch", difference <= 1e-5, difference, "largest difference, at most 1e-5")


def _kernels_are_used(worker: Any) -> bool:
    return worker._scoring.kernels is not None


def _score_with_torch(worker: Any) -> None:
    worker._scoring.kernels = None


async def _drafts(engine: Any, oracle: GenerationOracle, name: str, prompt: KeptPrompt, checks: Checks) -> None:
    """Two greedy rounds and a sampled one over a session."""
    if prompt.is_dense:
        await engine.score(ScoreRequest(name, prompt.token_ids, OPTIONS, keep_session=True))
    else:
        await engine.open_session(name, prompt)
    steps = [await _steps(engine)]
    first = (await engine.draft(name, np.empty(0, np.int32), DRAFTS)).tokens
    steps.append(await _steps(engine))
    half = first[: DRAFTS // 2]
    second = (await engine.draft(name, half, DRAFTS)).tokens
    steps.append(await _steps(engine))
    greedy = [*half.tolist(), *second.tolist()]
    matches = len(greedy) - oracle.wrong_tokens(prompt, greedy, TIE)
    says = f"of {len(greedy)} greedy drafts continue the prompt as the oracle, all but one at least"
    checks.judge(f"{name}: greedy drafts", matches >= len(greedy) - 1, matches, says)
    rounds = [after - before for before, after in itertools.pairwise(steps)]
    checks.judge(f"{name}: steps per round", max(rounds) == 1, max(rounds), "engine steps for one round, 1")
    rebuilt = engine.counts["rebuilt"]
    checks.judge(f"{name}: rebuilt", rebuilt == 0, rebuilt, "rounds read cached blocks again, none may")
    top = 16
    drafted = await engine.draft(name, half, DRAFTS, temperature=0.9, top_m=top)
    ids, q = drafted.q_ids.reshape(-1, top), drafted.q_probs.reshape(-1, top)
    error = float(np.abs(q.sum(1) - 1).max())
    among = all(token in row for token, row in zip(drafted.tokens, ids, strict=True))
    checks.judge(
        f"{name}: q", error <= 1e-5 and among, error, "is how far q is from sum 1; drafts are among its tokens"
    )
    await engine.close_session(name)


async def _full_graphs(engine: Any, settings: Settings, checks: Checks) -> None:
    """Control, for an engine that is not used any more: in a full CUDA graph no Python runs. So if look-ahead steps
    get vLLM's choice of the graph, their queries are missing, and the scores are NaN.
    """
    if settings.device == "cpu":
        checks.skip("control: full graphs", "there are no CUDA graphs on CPU")
        return
    await call(engine, _choose_graphs_as_vllm)
    scores = await engine.score(ScoreRequest("full graphs", random_ids(300, 2), OPTIONS))
    nans = float(np.isnan(scores.importance).mean())
    checks.judge("control: full graphs", nans == 1, nans, "of the scores are NaN, all must be")
    prompt = await engine.score(ScoreRequest("prompt only", random_ids(300, 3), SelectionOptions(look_ahead=0)))
    finite = float(np.isfinite(prompt.importance).mean())
    checks.judge("control: prompt", finite == 1, finite, "of the scores without look-ahead are numbers, all must be")


def _choose_graphs_as_vllm(worker: Any) -> None:
    """Take `query_capture.piecewise_while` back."""
    del worker.model_runner.cudagraph_manager.dispatch


def _count_steps(worker: Any) -> None:
    """`steps` counts the engine steps that sample from now on."""
    sample, worker.steps = worker.sample_tokens, 0

    def counting(grammar_output: Any) -> Any:
        worker.steps += 1
        return sample(grammar_output)

    worker.sample_tokens = counting


async def _steps(engine: Any) -> int:
    return int(await call(engine, lambda worker: worker.steps))
