"""Head profiles of random models, and the comparison of scores by heads with the oracle."""

from collections.abc import Iterator
from contextlib import contextmanager

from kv_transfer.options import SelectionOptions
from speculator_service.scoring.heads import Head, HeadProfile
from speculator_service.vllm_backend.score_arguments import ScoreArguments
from tests.engine.speculator_service.vllm_backend.conftest import Rig, rows_of
from tests.reference import scoring_oracle

HEADS = SelectionOptions(scoring="heads")


def profile_of(heads, question=1.0, last=3.0) -> HeadProfile:
    """heads: (layer, head, weight). Its fingerprint is checked at the start of an engine only."""
    listed = tuple(Head(layer=layer, head=head, weight=weight) for layer, head, weight in heads)
    return HeadProfile(model="random", fingerprint="", question=question, last=last, heads=listed)


@contextmanager
def scored_by(rig: Rig, profile: HeadProfile | None) -> Iterator[None]:
    """The engine of `rig` has this profile meanwhile."""
    right = rig.engine._arguments
    rig.engine._arguments = ScoreArguments("some/model", profile)
    try:
        yield
    finally:
        rig.engine._arguments = right


def expected(rig: Rig, token_ids, question, profile: HeadProfile):
    """The oracle's scores. The last prompt token is no row of the question."""
    rows = rows_of(token_ids, SelectionOptions(score_queries="both"), question)
    total = sum(head.weight for head in profile.heads)
    heads = [(head.layer, head.head, head.weight / total) for head in profile.heads]
    weights = [profile.question / len(rows)] * len(rows) + [profile.last] if rows else [1.0]
    weights = [weight / sum(weights) for weight in weights]
    return scoring_oracle.score_by_heads(rig.oracle, token_ids, heads, [*rows, len(token_ids) - 1], weights)


async def error(rig: Rig, token_ids, question, profile: HeadProfile, wanted: HeadProfile | None = None) -> float:
    """The largest error of the scores by `profile` against the oracle's by `wanted`, which is `profile` by default."""
    with scored_by(rig, profile):
        answer = await rig.score(token_ids, HEADS, question=question)
    assert answer.look_ahead_tokens == []
    return (answer.importance - expected(rig, token_ids, question, wanted or profile)).abs().max().item()
