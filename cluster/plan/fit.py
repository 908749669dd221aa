"""Whether a speculator fits a target: the check that `skim serve` makes, what the pair costs, and how far it reads."""

from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import NamedTuple

from cluster.config.load import config_from_settings
from cluster.plan.candidates import Candidate
from cluster.plan.engine import Model, PlannedEngine
from cluster.plan.gpus import Machine
from cluster.serve.preflight import check_models
from skim_common.errors import ModelError
from skim_common.models.costs import Read
from skim_common.models.info import inspect_model, text_config
from skim_common.models.size import ModelSize, model_size

LENGTHS = (8192, 32768, 131072)
"""Prompt lengths in tokens."""
COUNTING = Machine(linear=1.0, attention=1.0, bandwidth=inf)
"""On it, an engine's seconds are its operations: both pools are taken to compute as fast for their size."""


class FirstToken(NamedTuple):
    """The cost of the first token, where dense is 1: the speculator's read, and the target's read of what is kept.

    whole: the speculator reads the prompt as a whole. windows: it reads windows (`read: windows`), and
    the best of several windows once more.
    """

    whole: float
    windows: float


def first_token(speculator: Model, target: Model, tokens: int, keep_rate: float) -> FirstToken:
    """For a prompt of `tokens` tokens without cached ones. Not counted: scoring, and the decoding of the look-ahead."""
    big, small = PlannedEngine(target, COUNTING), PlannedEngine(speculator, COUNTING, windows=True)
    dense, kept = (big.read_s(Read.of(read)) for read in (tokens, keep_rate * tokens))
    return FirstToken(*((read(Read(tokens)) + kept) / dense for read in (small.read_s, small.select_s)))


@dataclass(frozen=True)
class Target:
    """A model that can be a target. folder: where its config and tokenizer are."""

    name: str
    folder: str
    size: ModelSize


@dataclass(frozen=True)
class Fit:
    """A candidate with its verdict.

    verdict: "fits"; "no gain" if reading the whole prompt with it and prefilling what is kept cost as much as a dense
    prefill at all lengths; "refused". reason: why `skim serve` refuses the pair, or the limit of one that fits.
    tokenizer: "same" as the target's, or "another". cost: parameters that compute a prompt token, as a share of the
    target's. first: the cost of the first token at each of `LENGTHS`; empty if a model has no usual
    shape.
    """

    name: str
    verdict: str
    reason: str = ""
    tokenizer: str | None = None
    size: ModelSize | None = None
    cost: float | None = None
    first: dict[int, FirstToken] = field(default_factory=dict)


def read_target(name: str, folder: str) -> Target:
    """The target in `folder`. Raises ModelError, which names the model as `name`."""
    try:
        inspect_model(folder, engine="vllm")
    except ModelError as error:
        raise ModelError(str(error).replace(folder, name)) from None
    return Target(name, folder, model_size(folder))


def fit(candidate: Candidate, target: Target, keep_rate: float) -> Fit:
    """Whether `candidate` can speculate for `target`, when that share of the prompts is kept."""
    pair = {"speculator": {"model": candidate.folder}, "target": {"model": target.folder}}
    try:
        notice = check_models(config_from_settings(pair))
    except ModelError as error:
        reason = str(error).replace(candidate.folder, candidate.name).replace(target.folder, target.name)
        return Fit(candidate.name, "refused", reason)
    size = model_size(candidate.folder)
    found = Fit(candidate.name, "fits", _limit(size, target.size), "another" if notice else "same", size)
    if not size.per_token or not target.size.per_token:
        return found
    cost = size.per_token / target.size.per_token
    try:
        own = Model.of(candidate.name, text_config(candidate.folder), size)
        others = Model.of(target.name, text_config(target.folder), target.size)
    except ModelError:  # no usual shape
        return replace(found, cost=cost)
    first = {tokens: first_token(own, others, tokens, keep_rate) for tokens in LENGTHS}
    verdict = "fits" if min(shares.whole for shares in first.values()) < 1 else "no gain"
    return replace(found, verdict=verdict, cost=cost, first=first)


def best_first(fits: list[Fit]) -> list[Fit]:
    """Those that fit come first, then those with the target's tokenizer, then the cheapest."""
    order = ("fits", "no gain", "refused")
    return sorted(fits, key=lambda one: (order.index(one.verdict), one.tokenizer != "same", one.cost or 0.0, one.name))


def is_same(candidate: Candidate, target: Target) -> bool:
    return Path(candidate.folder).resolve() == Path(target.folder).resolve()


def _limit(speculator: ModelSize, target: ModelSize) -> str:
    """What a user must know if the speculator reads shorter prompts than the target."""
    if speculator.positions >= target.positions:
        return ""
    return (
        f"it reads {speculator.positions} tokens, the target {target.positions}; a prompt between the two gets an error"
        " unless its request switches speculative_prefill off"
    )
