"""Kept prompts whose segments do not stand in the order of the text."""

import numpy as np

from kv_transfer.arrays import Int32Array
from kv_transfer.messages import KeptPrompt


def shuffled(prompt: KeptPrompt, *, seed: int = 0, size: int = 16, last: int = 4) -> KeptPrompt:
    """The tokens of `prompt` in runs of `size`, in random order and at their positions; the `last` ones stay last."""
    slots = np.arange(prompt.token_ids.size)
    body = slots[: max(0, slots.size - last)]
    runs = np.split(body, range(size, body.size, size))
    order = np.random.default_rng(seed).permutation(len(runs))
    return in_order(prompt, np.concatenate([*(runs[i] for i in order), slots[body.size :]]))


def in_order(prompt: KeptPrompt, order: Int32Array) -> KeptPrompt:
    """The tokens of `prompt` in the order of its slots `order`, at their positions."""
    return KeptPrompt(prompt.token_ids[order], prompt.positions[order], prompt.context_length)


def with_late_chunk(prompt: KeptPrompt, ids: Int32Array, positions: Int32Array, *, last: int) -> KeptPrompt:
    """`prompt` with dropped tokens appended before its `last` tokens. ids: int32 [M], the whole text."""
    cut = prompt.token_ids.size - last
    return KeptPrompt(
        np.concatenate((prompt.token_ids[:cut], ids[positions], prompt.token_ids[cut:])),
        np.concatenate((prompt.positions[:cut], positions, prompt.positions[cut:])).astype(np.int32),
        prompt.context_length,
    )


def next_turn(prompt: KeptPrompt, answer: Int32Array, late: KeptPrompt, question: Int32Array) -> KeptPrompt:
    """`prompt`, its answer, tokens of the same text that it lacks, and the tokens of a new question."""
    context = prompt.context_length
    end = context + answer.size + question.size
    return KeptPrompt(
        np.concatenate((prompt.token_ids, answer, late.token_ids, question)),
        np.concatenate(
            (prompt.positions, np.r_[context : context + answer.size], late.positions, np.r_[end - question.size : end])
        ).astype(np.int32),
        end,
    )
