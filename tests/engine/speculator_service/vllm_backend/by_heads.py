"""Head profiles of random models, and the comparison of scores by heads with the oracle."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from kv_transfer.options import SelectionOptions
from speculator_service.scoring.heads import Head, HeadProfile
from tests.engine.speculator_service.vllm_backend.conftest import Rig
from tests.reference import scoring_oracle

HEADS = SelectionOptions(scoring="heads")


def profile_of(heads, question=1.0, last=3.0) -> HeadProfile:
    """heads: (layer, head, weight). Its fingerprint is checked at the start of an engine only."""
    listed = tuple(Head(layer=layer, head=head, weight=weight) for layer, head, weight in heads)
    return HeadProfile(model="random", fingerprint="", question=question, last=last, heads=listed)


@contextmanager
def scored_by(rig: Rig, profile: HeadProfile | None) -> Iterator[None]:
    """The engine of `rig` has this profile meanwhile."""
    right = rig.engine._profile
    rig.engine.use_heads(profile)
    try:
        yield
    finally:
        rig.engine.use_heads(right)


def expected(rig: Rig, token_ids, question, profile: HeadProfile):
    """The oracle's scores, by at most the last 64 tokens of the question. The last prompt token is no row of it."""
    first, end = question or (max(0, len(token_ids) - HEADS.protect_last), len(token_ids))
    rows = list(range(first, min(end, len(token_ids) - 1)))[-64:]
    total = sum(head.weight for head in profile.heads)
    heads = [(head.layer, head.head, head.weight / total) for head in profile.heads]
    weights = [profile.question / len(rows)] * len(rows) + [profile.last] if rows else [1.0]
    weights = [weight / sum(weights) for weight in weights]
    return scoring_oracle.score_by_heads(rig.oracle, token_ids, heads, [*rows, len(token_ids) - 1], weights)


async def errors(rig: Rig, cases, profile: HeadProfile, wanted: HeadProfile | None = None) -> list[float]:
    """The largest error of each (token ids, question) by `profile` against the oracle's by `wanted`, by default the
    same. The cases are scored together; `rig.cached` has their tokens from the prefix cache."""
    with scored_by(rig, profile):
        answers = await asyncio.gather(*(rig.score(ids, HEADS, f"r{i}", q) for i, (ids, q) in enumerate(cases)))
    rig.cached = [answer.cached_tokens for answer in answers]
    assert all(answer.look_ahead_tokens == [] for answer in answers)
    assert all(answer.importance.dtype == torch.float32 for answer in answers)
    right = [expected(rig, ids, question, wanted or profile) for ids, question in cases]
    return [(a.importance - scores).abs().max().item() for a, scores in zip(answers, right, strict=True)]


async def error(rig: Rig, token_ids, question, profile: HeadProfile, wanted: HeadProfile | None = None) -> float:
    """`errors` of one prompt."""
    return (await errors(rig, [(token_ids, question)], profile, wanted))[0]
