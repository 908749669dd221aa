"""A model with linear attention in every second layer, in both roles: its states, and restored positions."""

import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.proof import drafts, speculator, target
from benchmarks.gpu.proof.engines import stopped, tell_what_runs
from benchmarks.gpu.proof.models import HYBRID, kept_prompt, make_checkpoint, random_ids
from benchmarks.gpu.steps.checks import Checks, Settings
from kv_transfer.messages import KeptPrompt
from speculator_service.engine import ScoreRequest
from tests.reference import scoring_oracle
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.models import load_model

LENGTHS = (300, 1500)
TOY_LENGTHS = (300,)
ENDS_IN_A_STATE = 32 * 9
"""Tokens of a prompt whose last state is cached."""
DRAFTS = 8
ROUNDS = 6
LEAST_CORRELATION = 0.97


async def hybrid(settings: Settings, checks: Checks) -> None:
    """Random weights. On CPU vLLM's kernels of linear attention compute in bfloat16, so the engines do too."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), layers=4, head_size=64, fields=HYBRID)
        oracle = GenerationOracle(path)
        options = {"approximate_positions": True}
        sizes = (600, 180) if settings.toy else (2000, 600)
        with checks.part("target"), stopped(target.start(path, settings, **options)) as engine:
            await tell_what_runs(engine, settings, checks, "target", runner=target.V2, backend=None)
            await target.right(engine, oracle, kept_prompt(*sizes, 1), checks, "target")
            await target.without_the_hook(engine, oracle, checks)
        await _drafted(path, settings, oracle, kept_prompt(*sizes, 2), checks)
        with checks.part("speculator"), stopped(speculator.start(path, settings)) as engine:
            await tell_what_runs(engine, settings, checks, "speculator", runner=speculator.V2, backend=None)
            await _scores(engine, path, TOY_LENGTHS if settings.toy else LENGTHS, checks)
            prompts = {"full": KeptPrompt.dense(random_ids(ENDS_IN_A_STATE, 11)), "kept": kept_prompt(*sizes, 12)}
            for name, prompt in prompts.items():
                await _rounds(engine, oracle, name, prompt, checks)


async def _drafted(path: str, settings: Settings, oracle: GenerationOracle, prompt: KeptPrompt, checks: Checks) -> None:
    """Verified drafts: a rejected one must leave no state behind."""
    if settings.device == "cpu":
        checks.skip("verified drafts", "Skim refuses them, because vLLM's kernels on CPU give wrong tokens")
        return
    dtype = "bfloat16"
    with (
        checks.part("verified drafts"),
        stopped(drafts.start(path, settings, drafts.DRAFTS, dtype, approximate_positions=True)) as engine,
    ):
        drafted = drafts.DraftedAnswers(engine, oracle, prompt, dtype, checks)
        await drafted.plain()
        for name, acceptance in (("knowing drafter", 1.0), ("control: lying drafter", 0.0)):
            await drafted.check(name, acceptance)


async def _scores(engine: Any, path: str, lengths: Sequence[int], checks: Checks) -> None:
    """Each prompt twice, cold and from the prefix cache."""
    reader, found = load_model(path), []
    for length, again in itertools.product(lengths, ("cold", "cached")):
        ids = random_ids(length, 7)
        scores = await engine.score(ScoreRequest(f"{again}-{length}", ids, speculator.OPTIONS))
        expected = scoring_oracle.score(reader, ids.tolist(), speculator.OPTIONS, decoded=scores.look_ahead_tokens)
        found.append(np.corrcoef(scores.importance, expected.importance)[0, 1].item())
    says = f"is the least correlation of scores with the oracle's, at least {LEAST_CORRELATION}"
    checks.judge("scores", min(found) >= LEAST_CORRELATION, min(found), says)


async def _rounds(engine: Any, oracle: GenerationOracle, name: str, prompt: KeptPrompt, checks: Checks) -> None:
    """Rounds of which half of the drafts are accepted."""
    if prompt.is_dense:
        await engine.score(ScoreRequest(name, prompt.token_ids, speculator.OPTIONS, keep_session=True))
    else:
        await engine.open_session(name, prompt)
    answer, right = np.empty(0, np.int32), 0
    for _ in range(ROUNDS):
        drafted = (await engine.draft(name, answer, DRAFTS)).tokens
        whole = [*answer.tolist(), *drafted.tolist()]
        row = oracle.logprobs(prompt, whole)[answer.size :]
        chosen = row.gather(1, torch.tensor(drafted.tolist())[:, None])[:, 0]
        right += int((row.amax(1) - chosen < target.TIE).sum())
        answer = np.concatenate([answer, drafted[: DRAFTS // 2], random_ids(1, answer.size)])
    total = ROUNDS * DRAFTS
    says = f"of {total} drafts are the oracle's after rejected ones, all but three at least"
    checks.judge(f"{name}: drafts", right >= total - 3, right, says)
