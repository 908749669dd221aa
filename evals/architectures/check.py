"""One architecture as target and as speculator, compared with transformers."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from evals.architectures.found import Found, Role
from evals.architectures.oracle import Oracle
from evals.architectures.registry import Recipe
from evals.architectures.tiny import SPECIAL, VOCABULARY, build, write_stub
from kv_transfer.messages import GenerateRequest, KeptPrompt
from kv_transfer.options import SelectionOptions
from skim_common.errors import EngineUnavailableError, ModelError, SkimError
from skim_common.models.info import inspect_model
from speculator_service.engine import ScoreRequest
from speculator_service.vllm_backend.engine import VllmSpeculator
from target_service.vllm_backend.engine import VllmTarget

CONTEXT, KEPT, ANSWER = 160, 60, 8
SHIFT = 64
CANDIDATES = 5
CLOSE = {"float32": 5e-3, "bfloat16": 0.1}
"""Largest difference of log probabilities; in bfloat16 the mean one."""
CLOSE_WEIGHTS = {"float32": 1e-3, "bfloat16": 0.03}
"""Largest difference of attention weights; in bfloat16 what their correlation lacks to 1."""
APART = 2.0
"""In bfloat16, withheld positions must make so many times the error, or nothing is known."""
DIFFERENT = "vLLM and transformers differ over whole prompts"
ALIKE = "compared with itself: vLLM and transformers differ over whole prompts"
UNCLEAR = "in bfloat16, wrong positions change its answers as little as rounding does"
NO_POSITIONS = "no layer sees positions, so that the kept tokens are read as the whole text"
ENGINE: Mapping[str, Any] = {
    "enforce_eager": True,
    "block_size": 32,
    "num_gpu_blocks_override": 512,
    "max_model_len": 512,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 128,
    "seed": 0,
}


def check(
    recipe: Recipe,
    folder: Path,
    *,
    target: type[VllmTarget] = VllmTarget,
    speculator: type[VllmSpeculator] = VllmSpeculator,
) -> Found:
    """Build the recipe's model in `folder` and run it in both roles. target, speculator: the classes of the engines."""

    def both(role: Role) -> Found:
        return Found(recipe.architecture, recipe.model_type, recipe.dtype, role, role)

    write_stub(folder, recipe)
    try:
        inspect_model(str(folder), engine="vllm")
        model = build(folder, recipe)
        oracle = Oracle(model, has_images=recipe.has_images)
    except ModelError as error:
        return both(Role("no", _short(error, str(folder), recipe)))
    except Exception as error:  # also what Skim should not raise
        return both(Role("does not build here", _short(error, str(folder), recipe)))
    as_target = _run(lambda: _check_target(model, recipe, oracle, target), model, recipe)
    as_speculator = _run(lambda: _check_speculator(model, recipe, oracle, speculator), model, recipe)
    if as_speculator.verdict == "wrong" and as_target.why in (ALIKE, DIFFERENT):
        as_speculator = replace(as_speculator, verdict="does not build here", why=DIFFERENT)
    return Found(recipe.architecture, recipe.model_type, recipe.dtype, as_target, as_speculator)


def _run(checked: Callable[[], Any], model: str, recipe: Recipe) -> Role:
    try:
        return asyncio.run(checked())
    except ModelError as error:
        return Role("no", _short(error, model, recipe))
    except EngineUnavailableError:
        return Role("does not build here", "vLLM's engine ends in its first step")
    except Exception as error:  # vLLM, transformers, and what Skim should not raise
        return Role("does not build here", _short(error, model, recipe))


async def _check_target(model: str, recipe: Recipe, oracle: Oracle, target: type[VllmTarget]) -> Role:
    options = {**ENGINE, "dtype": recipe.dtype, "approximate_positions": True}
    engine = target(model, **options)
    kept, whole = _kept(), KeptPrompt.dense(_prompt())
    compact = KeptPrompt.dense(kept.token_ids)
    moved = KeptPrompt(kept.token_ids, kept.positions + SHIFT, kept.context_length + SHIFT)
    first = KeptPrompt(kept.token_ids, compact.positions, kept.context_length)
    try:
        # The compact prompt first: its blocks have the same tokens, and must not be found for the kept one.
        answers = [await _ask(engine, "compact", compact)]
        answers += await asyncio.gather(*(_ask(engine, str(i), p) for i, p in enumerate((whole, kept, moved, first))))
    finally:
        engine.close()

    def error(prompt: KeptPrompt, answer: Answer) -> float:
        return _error(oracle, prompt, answer, recipe.dtype)

    of_compact, of_whole, of_kept, of_moved, of_first = answers
    close = CLOSE[recipe.dtype]
    if not (apart := max(error(compact, of_compact), error(whole, of_whole))) <= close:
        same = max(_apart(of_kept, of_moved), _apart(of_first, of_compact)) <= close < _apart(of_kept, of_compact)
        return Role("yes" if same else "does not build here", ALIKE if same else DIFFERENT, apart)
    found = max(error(kept, of_kept), error(moved, of_moved), error(first, of_first))
    control = error(compact, of_kept)
    if not found <= close:  # not a number, too
        return Role("wrong", "answers to kept prompts differ from those of transformers", found, control)
    if recipe.dtype == "bfloat16":
        unclear = control < APART * found
        return Role("does not build here" if unclear else "yes", UNCLEAR if unclear else "", found, control)
    return Role("yes", NO_POSITIONS if control <= close else "", found, control)


async def _check_speculator(model: str, recipe: Recipe, oracle: Oracle, speculator: type[VllmSpeculator]) -> Role:
    engine = speculator(model, **{**ENGINE, "dtype": recipe.dtype})
    try:
        prompt = KeptPrompt.dense(_prompt())
        options = SelectionOptions(look_ahead=0, layers="all", aggregation="max", scoring="attention")
        keeps = engine.supports_drafts
        scores = await engine.score(ScoreRequest("score", prompt.token_ids, options, keep_session=keeps))
        drafted = []
        if keeps:
            drafted = (await engine.draft("score", np.empty(0, np.int32), 4)).tokens.tolist()
    finally:
        engine.close()
    expected = oracle.last_row(prompt.token_ids.tolist())
    error = _weights_error(torch.from_numpy(scores.importance), expected, recipe.dtype)
    if not error <= CLOSE_WEIGHTS[recipe.dtype]:
        return Role("wrong", "scores differ from the attention in transformers", error)
    if drafted:
        rows = oracle.logprobs(prompt, drafted)
        lost = float((rows.amax(-1) - rows.gather(-1, torch.tensor(drafted)[:, None])[:, 0]).max())
        if not lost <= CLOSE[recipe.dtype]:
            return Role("wrong", "drafts are not the most probable tokens in transformers", lost)
    return Role("yes", "", error)


Answer = tuple[list[int], list[dict[int, float]]]
"""Tokens, and the log probabilities of the candidates for each."""


async def _ask(engine: VllmTarget, name: str, prompt: KeptPrompt) -> Answer:
    sampling = {"temperature": 0.0, "max_tokens": ANSWER, "logprobs": CANDIDATES, "ignore_eos": True}
    outputs = [output async for output in engine.generate(GenerateRequest(name, prompt, sampling))]
    parts = [part for output in outputs for part in output.completions]
    tokens = [int(token) for part in parts for token in part.token_ids]
    rows = [{one.token_id: one.logprob for one in row} for part in parts for row in part.logprobs or []]
    return tokens, rows


def _error(oracle: Oracle, prompt: KeptPrompt, answer: Answer, dtype: str) -> float:
    """The largest difference from the oracle's log probabilities; in bfloat16 the mean one."""
    tokens, rows = answer
    expected = oracle.logprobs(prompt, tokens)
    differences = [abs(value - float(expected[i, token])) for i, row in enumerate(rows) for token, value in row.items()]
    return float(max(differences) if dtype == "float32" else np.mean(differences))


def _apart(one: Answer, other: Answer) -> float:
    """The largest difference of the first token's log probabilities; infinite if they have no candidate in common."""
    rows = one[1][0], other[1][0]
    return max((abs(rows[0][token] - rows[1][token]) for token in rows[0].keys() & rows[1].keys()), default=np.inf)


def _weights_error(found: torch.Tensor, expected: torch.Tensor, dtype: str) -> float:
    if dtype == "float32":
        return float((found - expected).abs().max())
    return 1 - float(torch.corrcoef(torch.stack([found, expected]))[0, 1])


def _prompt() -> np.ndarray:
    return np.random.default_rng(0).integers(SPECIAL, VOCABULARY, CONTEXT).astype(np.int32)


def _kept() -> KeptPrompt:
    chosen = np.random.default_rng(1).choice(CONTEXT, KEPT, replace=False)
    positions = np.sort(chosen).astype(np.int32)
    return KeptPrompt(_prompt()[positions], positions, CONTEXT)


def _short(error: Exception, model: str, recipe: Recipe) -> str:
    """One sentence that is the same for models that have the same cause."""
    text = " ".join(str(error).split())
    for name, said in (
        (f"the target engine did not start with {model}: ", ""),
        (f"the target engine cannot run {model} with these options: ", ""),
        (f"speculator {model} did not start: ", ""),
        (f"model {model} is not supported yet as a speculator: ", ""),
        (f"model {model} is not supported: ", ""),
        (f"model {model}: ", ""),
        (f"model {model}", "it"),
        (f"speculator {model}", "it"),
        (model, "it"),
        (f"model type {recipe.model_type}", "such model type"),
        (recipe.architecture, "it"),
    ):
        text = text.replace(name, said)
    if not isinstance(error, SkimError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= 200 else text[:197] + "..."
