"""Whether a target that has just started reads kept prompts at their original positions.

The target is compared with itself. The probes need no trained model.
"""

import asyncio
from collections.abc import Mapping
from uuid import uuid4

import numpy as np

from kv_transfer.messages import GenerateRequest, KeptPrompt
from kv_transfer.options import DecodeOptions
from skim_common.models.info import load_tokenizer, text_config
from target_service.engine import TargetEngine

CANDIDATES, FEWEST = 20, 5
"""Of the most probable next tokens: compared, as many as vLLM shows by default; and those that an engine must show."""
SAME, OTHER = 0.2, 0.4
"""`_distance` up to which two answers count as one, and from which on as two."""
SHIFT = 64
TEXT = "The secret word of the harbour is marble.\nThe secret word of the harbour is"

Distribution = Mapping[int, float]
"""The probabilities of the most probable next tokens, by token id."""


async def find_failure(engine: TargetEngine, model: str, *, max_logprobs: int = CANDIDATES) -> str | None:
    """Why kept prompts cannot be trusted to `engine`, in one sentence; None if they can.

    max_logprobs: vLLM's option of the engine; -1: no limit. An engine that is too short for the prompts, or shows fewer
    than FEWEST candidates, is trusted. Raises SkimError if the engine fails.
    """
    candidates = CANDIDATES if max_logprobs < 0 else min(CANDIDATES, max_logprobs)
    tokens = np.array(load_tokenizer(model)(TEXT, add_special_tokens=False).input_ids, np.int32)
    # The same tokens in the same order, at seeded positions that make another text of them.
    positions = np.random.default_rng(0).permutation(4 * tokens.size)[: tokens.size].astype(np.int32)
    length = 4 * int(tokens.size)
    if candidates < FEWEST or length + SHIFT + 2 > min(engine.info.max_model_len, engine.info.max_position):
        return None
    mixed, moved = KeptPrompt(tokens, positions, length), KeptPrompt(tokens, positions + SHIFT, length + SHIFT)
    name = f"skim-start-probe-{uuid4().hex}"

    async def ask(number: int, prompt: KeptPrompt, count: int = 1) -> list[Distribution]:
        """The distributions of the next `count` tokens, decoded greedily and without drafts."""
        sampling = {"temperature": 0.0, "max_tokens": count, "logprobs": candidates, "ignore_eos": True}
        # With a salt, nothing of an earlier probe may be found in the prefix cache.
        request = GenerateRequest(
            f"{name}-{number}", prompt, sampling, cache_salt=name, decode=DecodeOptions(method="none")
        )
        outputs = [output async for output in engine.generate(request)]
        rows = [row for output in outputs for part in output.completions for row in part.logprobs or []]
        return [{one.token_id: float(np.exp(one.logprob)) for one in row} for row in rows]

    # At once, so that they share steps: the positions of one must not reach another.
    [in_order], [first, second], [after_move] = await asyncio.gather(
        ask(1, KeptPrompt.dense(tokens)), ask(2, mixed, 2), ask(3, moved)
    )
    if _has_rope(model):
        if _distance(in_order, first) < OTHER:
            return "restored positions change nothing: the target answers as if the kept tokens were the whole text"
        if _distance(first, after_move) > SAME:
            return (
                "the target's answer depends on where a kept prompt begins, so it does not get the positions it is sent"
            )
    best = max(first, key=lambda token: first[token])
    [as_prompt] = await ask(4, mixed.extended([best]))
    if _distance(second, as_prompt) > SAME:
        return "the second token of an answer gets another position than the same token in a prompt"
    return None


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
