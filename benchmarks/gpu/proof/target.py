"""The target's hook: restored positions in prefill and decoding, with CUDA graphs and asynchronous scheduling."""

import asyncio
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.gpu.proof.engines import (
    call,
    count_graphs,
    engine_options,
    full_graphs_ran,
    stopped,
    tell_what_runs,
)
from benchmarks.gpu.proof.models import kept_prompt, make_checkpoint, random_ids
from benchmarks.gpu.steps.checks import Checks, Settings
from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle, TokenLogprob
from kv_transfer.options import DecodeOptions
from tests.reference.generation_oracle import GenerationOracle, joined

TOKENS = 64
TIE = 0.05
"""In bfloat16, either of two tokens may win whose log probabilities differ by less."""
NEARLY = 60
"""Tokens of an answer in bfloat16 that must be the oracle's, or as probable (`TIE`)."""
POSITIONS = 8192
V2 = "v1.worker.gpu.model_runner"
PLAIN = DecodeOptions(method="none")


class Answer(NamedTuple):
    """A whole answer, and the log probabilities that the engine gave for the candidates of each token."""

    tokens: list[int]
    logprobs: list[list[TokenLogprob]]
    cached_tokens: int


async def narrow(settings: Settings, checks: Checks) -> None:
    """Random weights with a head size of 64."""
    await _target(64, settings, checks)


async def wide(settings: Settings, checks: Checks) -> None:
    """Random weights with a head size of 128."""
    await _target(128, settings, checks)


async def last_position(settings: Settings, checks: Checks) -> None:
    """Drafts of vLLM's own draft model beyond the last position, with asynchronous scheduling on CUDA."""
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), layers=2, head_size=64, max_position=POSITIONS)
        oracle = GenerationOracle(path)
        drafting = {"decode": {"method": "draft_model", "max_draft_tokens": 4}, "draft_model": path}
        with stopped(start(path, settings, **drafting)) as engine:
            await tell_what_runs(engine, settings, checks, "draft model", runner=None, backend="FLASH_ATTN")
            await _to_the_end(engine, oracle, checks, "draft model", DecodeOptions())
            again = await answer(engine, "again", kept_prompt(900, 300, 5))
            checks.judge("draft model: alive", len(again.tokens) == TOKENS, len(again.tokens), "tokens come afterwards")


async def answer(
    engine: Any,
    name: str,
    prompt: KeptPrompt,
    decode: DecodeOptions = PLAIN,
    session: SessionHandle | None = None,
    **sampling: Any,
) -> Answer:
    """64 greedy tokens with logprobs. session: where drafts come from. sampling: changes to the parameters."""
    greedy = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": 3, "ignore_eos": True, "detokenize": False}
    asked = KeptPrompt(prompt.token_ids, prompt.positions, prompt.context_length, session=session)
    request = GenerateRequest(name, asked, {**greedy, **sampling}, decode=decode)
    outputs = [output async for output in engine.generate(request)]
    return Answer(*joined(outputs)[:2], outputs[0].cached_tokens)


def _matches(oracle: GenerationOracle, prompt: KeptPrompt, found: Answer, tie: float = TIE) -> int:
    """The number of tokens that are the oracle's."""
    return len(found.tokens) - oracle.wrong_tokens(prompt, found.tokens, tie)


def start(path: str, settings: Settings, **options: Any) -> Any:
    from target_service.vllm_backend.engine import VllmTarget

    return VllmTarget(path, **engine_options(settings, **options))


async def _target(head_size: int, settings: Settings, checks: Checks) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = make_checkpoint(Path(folder), layers=2, head_size=head_size, max_position=POSITIONS)
        oracle, prompt = GenerationOracle(path), kept_prompt(2000, 600, 1)
        graphs = eager = None
        with checks.part("bfloat16"), stopped(start(path, settings)) as engine:
            await tell_what_runs(engine, settings, checks, "bfloat16", runner=V2, backend="FLASH_ATTN")
            if settings.device == "cuda":
                await call(engine, count_graphs)
            graphs = await right(engine, oracle, prompt, checks, "bfloat16")
            await _together(engine, oracle, checks)
            await full_graphs_ran(engine, settings, checks, "bfloat16")
            await _cache(engine, prompt, checks)
            await _to_the_end(engine, oracle, checks, "bfloat16", PLAIN)
            await without_the_hook(engine, oracle, checks)
        if settings.device == "cpu":
            checks.skip("eager", "on CPU the engine above has no CUDA graphs either")
        else:
            with checks.part("eager"), stopped(start(path, settings, enforce_eager=True)) as engine:
                eager = await right(engine, oracle, prompt, checks, "eager")
        if graphs and eager:
            _agree(graphs.tokens, eager.tokens, oracle, prompt, checks)
        with checks.part("float32"), stopped(start(path, settings, dtype="float32")) as engine:
            await tell_what_runs(engine, settings, checks, "float32", runner=V2, backend=None)
            await right(engine, oracle, prompt, checks, "float32", exact=True)


async def right(
    engine: Any, oracle: GenerationOracle, prompt: KeptPrompt, checks: Checks, name: str, *, exact: bool = False
) -> Answer:
    """64 greedy tokens and their log probabilities against the oracle's. exact: in float32."""
    found = await answer(engine, f"{name}-right", prompt)
    least, tie = (TOKENS, 0.0) if exact else (NEARLY, TIE)
    matches, differences = (
        _matches(oracle, prompt, found, tie),
        oracle.differences(prompt, found.tokens, found.logprobs),
    )
    checks.judge(f"{name}: tokens", matches >= least, matches, f"of {TOKENS} are the oracle's, at least {least}")
    which, difference, limit = "mean", statistics.fmean(differences), 0.05
    if exact:
        which, difference, limit = "largest", max(differences), 1e-3
    says = f"{which} difference of log probabilities to the oracle, under {limit:g}"
    checks.judge(f"{name}: logprobs", difference < limit, difference, says)
    return found


async def _together(engine: Any, oracle: GenerationOracle, checks: Checks) -> None:
    """Five prompts at once, dense and kept: padded graphs, and batches in which only some requests have positions."""
    prompts = [
        kept_prompt(4000, 900, 11),
        KeptPrompt.dense(random_ids(500, 12)),
        kept_prompt(1000, 37, 13),
        KeptPrompt.dense(random_ids(40, 14)),
        kept_prompt(7000, 300, 15),
    ]
    found = await asyncio.gather(*(answer(engine, f"together-{i}", prompt) for i, prompt in enumerate(prompts)))
    matches = [_matches(oracle, prompt, one) for prompt, one in zip(prompts, found, strict=True)]
    says = f"of {TOKENS} are the oracle's in the worst of {len(prompts)} answers at once, at least {NEARLY}"
    checks.judge("five at once", min(matches) >= NEARLY, min(matches), says)


async def _cache(engine: Any, prompt: KeptPrompt, checks: Checks) -> None:
    """KV is shared between equal tokens at equal positions, and not with other positions."""
    moved = kept_prompt(prompt.context_length, prompt.token_ids.size, 2)
    same = await answer(engine, "same", prompt)
    other = await answer(engine, "other", KeptPrompt(prompt.token_ids, moved.positions, moved.context_length))
    checks.judge("cache, same positions", same.cached_tokens > 0, same.cached_tokens, "tokens from the prefix cache")
    says = "tokens from the prefix cache for the same ids at other positions, none may"
    checks.judge("cache, other positions", other.cached_tokens == 0, other.cached_tokens, says)


async def _to_the_end(engine: Any, oracle: GenerationOracle, checks: Checks, name: str, decode: DecodeOptions) -> None:
    """A kept prompt whose answer ends at the model's last position."""
    prompt = kept_prompt(POSITIONS - TOKENS, 60, 3)
    found = await answer(engine, f"{name}-end", prompt, decode)
    matches = _matches(oracle, prompt, found)
    right = matches >= NEARLY and len(found.tokens) == TOKENS
    checks.judge(f"{name}: last position", right, matches, f"of {TOKENS} are the oracle's, at least {NEARLY}")


async def without_the_hook(engine: Any, oracle: GenerationOracle, checks: Checks) -> None:
    """Control: without restored positions most tokens must be wrong."""
    prompt = kept_prompt(2000, 600, 4)
    await call(engine, _withhold_positions)
    matches = _matches(oracle, prompt, await answer(engine, "withheld", prompt))
    says = f"of {TOKENS} are the oracle's without the hook, fewer than {TOKENS // 2}"
    checks.judge("control: hook off", matches < TOKENS // 2, matches, says)


def _withhold_positions(worker: Any) -> None:
    from vllm_hooks import positions

    positions.position_map = lambda extra_args: None


def _agree(graphs: list[int], eager: list[int], oracle: GenerationOracle, prompt: KeptPrompt, checks: Checks) -> None:
    """The answers with and without CUDA graphs are equal up to two tokens that are almost equally probable."""
    same = int(np.cumprod(np.equal(graphs, eager)).sum())
    gap = 0.0
    if same < TOKENS:
        row = oracle.logprobs(prompt, graphs[: same + 1])[-1]
        gap = abs(float(row[graphs[same]] - row[eager[same]]))
    says = f"tokens are equal with and without CUDA graphs; then the two choices differ by {gap:.3f}, under {TIE:g}"
    checks.judge("graphs against eager", gap < TIE, same, says)
