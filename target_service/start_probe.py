"""Whether a target that has just started reads kept prompts at their original positions.

No oracle is at hand, so the target is compared with itself. The probes need no trained model, except the fact.
"""

import asyncio
from collections.abc import Mapping
from uuid import uuid4

import numpy as np

from kv_transfer.messages import GenerateRequest, KeptPrompt
from kv_transfer.options import DecodeOptions
from skim_common.models.info import text_config
from skim_common.models.needle_prompt import NeedlePrompt, needle_prompts
from target_service.engine import TargetEngine

CANDIDATES = 20
"""So many of the most probable next tokens are compared: as many as vLLM shows by default. Fewer if the engine shows
fewer, but at least FEWEST."""
FEWEST = 5
SURE = 0.25
"""The probability from which on the target's own choice over the whole prompt must be its choice over the kept one."""
NEAR = 1.0
"""By so many nats its probability there may be below that of the first choice."""
SAME, OTHER = 0.2, 0.4
"""`_distance` up to which two answers count as one, and from which on as two."""
SHIFT = 64
AROUND = 2
"""Lines before and after the fact that the target reads: it need not search a long text."""

Distribution = Mapping[int, float]
"""The probabilities of the most probable next tokens, by token id."""


async def find_failure(engine: TargetEngine, model: str, *, max_logprobs: int = CANDIDATES) -> str | None:
    """Why kept prompts cannot be trusted to `engine`, in one sentence; None if they can.

    model: its folder or hub name. max_logprobs: vLLM's option of the engine; -1: no limit. An engine that is too short
    for the prompts, or shows fewer than FEWEST candidates, is trusted. Raises SkimError if the engine fails.
    """
    candidates = CANDIDATES if max_logprobs < 0 else min(CANDIDATES, max_logprobs)
    if candidates < FEWEST:
        return None
    prompt = _excerpt(needle_prompts(model)[0])
    whole, kept = KeptPrompt.dense(prompt.token_ids), _kept(prompt)
    compact, mixed = KeptPrompt.dense(kept.token_ids), _mixed(kept)
    if max(whole.context_length, mixed.context_length + SHIFT) + 2 > min(
        engine.info.max_model_len, engine.info.max_position
    ):
        return None
    moved = KeptPrompt(mixed.token_ids, mixed.positions + SHIFT, mixed.context_length + SHIFT)
    probe = _Probe(engine, candidates)
    # At once, so that they share steps: the positions of one must not reach another.
    answers = await asyncio.gather(
        *(probe(one, tokens) for one, tokens in ((whole, 1), (kept, 1), (compact, 1), (mixed, 2), (moved, 1)))
    )
    [of_whole], [of_kept], [of_compact], [of_mixed, second], [of_moved] = answers
    if _has_rope(model):
        if _distance(of_compact, of_mixed) < OTHER:
            return "restored positions change nothing: the target answers as if the kept tokens were the whole text"
        if _distance(of_mixed, of_moved) > SAME:
            return (
                "the target's answer depends on where a kept prompt begins, so it does not get the positions it is sent"
            )
    [told] = await probe(mixed.extended([_best(of_mixed)]), 1)
    if _distance(second, told) > SAME:
        return "the second token of an answer gets another position than the same token in a prompt"
    best = _best(of_whole)
    if of_whole[best] >= SURE and of_kept.get(best, 0.0) < max(of_kept.values()) * np.exp(-NEAR):
        return "over a kept prompt the target loses a fact that it finds in the whole one"
    return None


class _Probe:
    """Asks the engine for next tokens."""

    def __init__(self, engine: TargetEngine, candidates: int) -> None:
        # Nothing of an earlier probe may be found in the prefix cache.
        self._engine, self._name, self._asked = engine, f"skim-start-probe-{uuid4().hex}", 0
        self._candidates = candidates

    async def __call__(self, prompt: KeptPrompt, tokens: int) -> list[Distribution]:
        """The distributions of the next `tokens` tokens, decoded greedily and without drafts."""
        self._asked += 1
        sampling = {"temperature": 0.0, "max_tokens": tokens, "logprobs": self._candidates, "ignore_eos": True}
        request = GenerateRequest(
            f"{self._name}-{self._asked}", prompt, sampling, cache_salt=self._name, decode=DecodeOptions(method="none")
        )
        outputs = [output async for output in self._engine.generate(request)]
        rows = [row for output in outputs for part in output.completions for row in part.logprobs or []]
        return [{one.token_id: float(np.exp(one.logprob)) for one in row} for row in rows]


def _excerpt(prompt: NeedlePrompt) -> NeedlePrompt:
    """The first line, the fact with AROUND lines before and after it, and the question."""
    lines = np.split(prompt.token_ids, prompt.starts[1:])
    fact = int(np.searchsorted(prompt.starts, prompt.needle[0]))
    chosen = [0, *range(max(1, fact - AROUND), fact + AROUND + 1), len(lines) - 1]
    ends = np.cumsum([lines[number].size for number in chosen], dtype=np.int32)
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int32)
    place = chosen.index(fact)
    return NeedlePrompt(
        np.concatenate([lines[number] for number in chosen]),
        starts,
        (int(starts[place]), int(ends[place])),
        (int(starts[-1]), int(ends[-1])),
    )


def _kept(prompt: NeedlePrompt) -> KeptPrompt:
    """What a good selection keeps: the fact and the question."""
    spans = [prompt.needle, prompt.question]
    positions = np.concatenate([np.arange(*span, dtype=np.int32) for span in spans])
    return KeptPrompt(prompt.token_ids[positions], positions, int(prompt.token_ids.size))


def _mixed(prompt: KeptPrompt) -> KeptPrompt:
    """The same tokens in the same order, at seeded positions that make another text of them."""
    size = int(prompt.token_ids.size)
    positions = np.random.default_rng(0).permutation(4 * size)[:size].astype(np.int32)
    return KeptPrompt(prompt.token_ids, positions, 4 * size)


def _best(distribution: Distribution) -> int:
    return max(distribution, key=lambda token: distribution[token])


def _distance(one: Distribution, other: Distribution) -> float:
    """From 0 (equal) to 1 (no candidate in common): the part of the candidates' probability that they do not share."""
    tokens = {**one, **other}
    differ = sum(abs(one.get(token, 0.0) - other.get(token, 0.0)) for token in tokens)
    return differ / sum(one.get(token, 0.0) + other.get(token, 0.0) for token in tokens)


def _has_rope(model: str) -> bool:
    """Whether positions rotate the model's queries and keys: it then sees distances alone."""
    text = text_config(model)
    kind = getattr(text, "position_embedding_type", "rope")
    return bool(getattr(text, "rope_parameters", None)) and kind == "rope"
