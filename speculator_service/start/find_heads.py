"""Finds the retrieval heads of a model that has no head profile: the ones that look at what a question asks for.

A head is ranked by the attention mass that it puts on known evidence (QRHead, arXiv 2506.09944, section 3), over short
prompts of several kinds (`head_prompts`). The mean is that of the square roots: a head that looks a little in every
prompt is worth more than one that looks much in few. COUNT, DEPTH and LAST are the same for all models.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol, runtime_checkable
from uuid import uuid4

import torch

from kv_transfer.arrays import Int32Array, Span
from skim_common.errors import ModelError, SkimError
from skim_common.models.fingerprint import model_fingerprint
from skim_common.models.source import public_name
from speculator_service.engine import SpeculatorEngine
from speculator_service.scoring.heads import Head, HeadProfile, save, saved_file
from speculator_service.start.head_prompts import head_prompts
from speculator_service.start.probe import find_failure

logger = logging.getLogger(__name__)

COUNT = 8
DEPTH = 0.8
"""The heads are in this share of the layers, the lowest."""
LAST = 0.5
"""The weight of the last token's row; that of the question's rows is the rest to 1."""


@runtime_checkable
class HeadReader(SpeculatorEngine, Protocol):
    """An engine that tells what each head looks at: `speculator_service.vllm_backend.engine.VllmSpeculator`."""

    async def head_masses(
        self, request_id: str, token_ids: Int32Array, question: Span
    ) -> tuple[list[tuple[int, int]], torch.Tensor]: ...

    def use_heads(self, profile: HeadProfile | None) -> None: ...


def silent(done: int, of: int) -> None:
    """Tells nobody."""


async def find_heads(
    engine: HeadReader, model: str, progress: Callable[[int, int], None] = silent
) -> HeadProfile | None:
    """The profile of the best heads, by which `engine` scores from now on; None if they do not find what is asked for.

    model: the folder or hub name whose tokens the engine reads. progress: called with the prompts read so far, and all.
    They must pass the start probe by themselves. An engine too short for the prompts has no profile.
    Raises ModelError for a tokenizer that cannot be used, SkimError if the engine fails.
    """
    prompts = head_prompts(model)
    if max(prompt.token_ids.size for prompt in prompts) > min(engine.info.max_model_len, engine.info.max_position):
        return None
    name, found = f"skim-heads-{uuid4().hex}", []
    names: list[tuple[int, int]] = []
    for number, prompt in enumerate(prompts):
        progress(number, len(prompts))
        names, masses = await engine.head_masses(f"{name}-{number}", prompt.token_ids, prompt.question)
        found.append(masses[..., slice(*prompt.needle)].sum(-1).sqrt())
    heads = _best(names, torch.stack(found).mean(0).square())
    if not heads:
        return None
    made = {"by": "speculator_service.start.find_heads", "prompts": len(prompts)}
    profile = HeadProfile(
        model=public_name(model), fingerprint=_fingerprint(engine), question=1 - LAST, last=LAST, heads=heads, made=made
    )
    engine.use_heads(profile)
    if await find_failure(engine, model, heads_alone=True) is None:
        return profile
    engine.use_heads(None)
    return None


def _best(names: list[tuple[int, int]], worth: torch.Tensor) -> tuple[Head, ...]:
    """names: (layer, head) of n heads. worth: float32 [2, n], of the question's rows and of the last token's row."""
    low = [place for place, (layer, _) in enumerate(names) if layer < DEPTH * (1 + names[-1][0])]
    by_rows = (1 - LAST) * worth[0] + LAST * worth[1]
    ranked = sorted(low, key=lambda place: -by_rows[place].item())[:COUNT]
    heads = [(*names[place], round(by_rows[place].item(), 4)) for place in ranked]
    return tuple(Head(layer=layer, head=head, weight=weight) for layer, head, weight in heads if weight > 0)


def _fingerprint(engine: SpeculatorEngine) -> str:
    """Empty for a model that cannot be known again."""
    try:
        return model_fingerprint(engine.info)
    except ModelError:
        return ""


async def ensure_heads(engine: SpeculatorEngine, model: str) -> None:
    """Find the heads of a HeadReader that has no head profile, and save them for later starts on this machine.

    Not of random weights or an artificial language, whose attention fails the start probe, and not where the probe
    cannot be asked in the model's tokens. model: as in `find_heads`. Raises SkimError if the engine fails.
    """
    if engine.info.has_head_profile or not isinstance(engine, HeadReader):
        return
    profile = None
    with suppress(ModelError):
        if await find_failure(engine, model) is None:
            logger.info("finding the retrieval heads of %s, once for this machine", model)
            profile = await find_heads(engine, model)
    if profile is None:
        logger.info("no heads of %s find what a question asks for: it reads every prompt as a whole", model)
    elif profile.fingerprint:
        try:
            save(profile, saved_file(profile.fingerprint))
        except SkimError as error:
            logger.warning("the head profile of %s is not saved: %s", model, error)
