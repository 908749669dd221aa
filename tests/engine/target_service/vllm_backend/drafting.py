"""Shared by the drafting tests: a target with remote drafts, plain answers for comparison, requests with sessions."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kv_transfer.messages import GenerateRequest, KeptPrompt, SessionHandle
from kv_transfer.options import DecodeOptions
from target_service.engine import TargetEngine
from tests.engine.target_service.vllm_backend.cases import GREEDY
from tests.reference.drafters import FakeSpeculator
from tests.reference.generation_oracle import joined

PLAIN = DecodeOptions(method="none")
MAX_DRAFTS = 5
"""The engine's K in these tests."""


@dataclass
class Case:
    """A kept prompt, the id of its session, and the target's answer without drafts."""

    name: str
    prompt: KeptPrompt
    answer: list[int]


async def decode(
    engine: TargetEngine, prompt: KeptPrompt, name: str, options: DecodeOptions, **sampling: Any
) -> list[int]:
    """The tokens of a greedy request. sampling: changes to the parameters."""
    request = GenerateRequest(name, prompt, {**GREEDY, "logprobs": None, **sampling}, decode=options)
    return joined([o async for o in engine.generate(request)])[0]


async def plain_cases(
    engine: TargetEngine, prompts: Sequence[KeptPrompt], prefix: str, *, tokens: int = 64
) -> list[Case]:
    """Each prompt with its answer, decoded without drafts."""
    answers = await asyncio.gather(
        *(decode(engine, p, f"{prefix}-{i}-plain", PLAIN, max_tokens=tokens) for i, p in enumerate(prompts))
    )
    return [Case(f"{prefix}-{i}", p, a) for i, (p, a) in enumerate(zip(prompts, answers, strict=True))]


def with_session(case: Case, speculator: FakeSpeculator, look_ahead: Sequence[int] = ()) -> KeptPrompt:
    """The prompt as the router sends it after a selection with a session."""
    speculator.known[case.name] = []
    session = SessionHandle(speculator.address, case.name)
    return replace(case.prompt, session=session, look_ahead_tokens=np.array(look_ahead, np.int32))


async def wrong_answers(
    engine: TargetEngine,
    cases: Sequence[Case],
    speculator: FakeSpeculator,
    *,
    look_ahead: int = 0,
    at_once: int = 8,
    **options: Any,
) -> list[str]:
    """The cases whose answer with drafts differs from the plain one. look_ahead: number of look-ahead tokens sent."""
    chosen = DecodeOptions(**{"max_draft_tokens": MAX_DRAFTS, "adaptive": False, **options})
    turns = asyncio.Semaphore(at_once)

    async def is_wrong(case: Case) -> bool:
        async with turns:
            prompt = with_session(case, speculator, case.answer[:look_ahead])
            return await decode(engine, prompt, case.name, chosen, max_tokens=len(case.answer)) != case.answer

    wrong = await asyncio.gather(*(is_wrong(c) for c in cases))
    return [case.name for case, is_ in zip(cases, wrong, strict=True) if is_]


def gained(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """The increase of each count of the target."""
    rose = {}
    for name, value in after.items():
        old = before.get(name)
        if isinstance(value, dict):
            rose[name] = gained(old or {}, value)
        elif isinstance(value, list):
            rose[name] = [b - a for a, b in zip(old or [0] * len(value), value, strict=True)]
        else:
            rose[name] = value - (old or 0)
    return rose


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds that the engine or a drafter reaches asynchronously."""
    while not condition():  # noqa: ASYNC110  nobody there could set an event
        await asyncio.sleep(0.001)
