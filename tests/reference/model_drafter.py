"""A drafter with a model, for tests of a target without a second vLLM engine: slow and simple.

It reads the kept prompt and the answer anew for each draft. With the target's own model its drafts are right, so a
target that rejects them has read other tokens, or the same ones at other positions.
"""

import asyncio

import numpy as np
import torch

from kv_transfer.arrays import Int32Array
from kv_transfer.drafts import Drafted
from kv_transfer.messages import KeptPrompt
from skim_common.errors import SessionLostError
from skim_common.models.info import inspect_model
from speculator_service.engine import SpeculatorEngine
from tests.reference.generation_oracle import GenerationOracle

Top = tuple[torch.Tensor, torch.Tensor]
"""Probabilities and ids of some tokens, the most probable first."""


class ModelDrafter(SpeculatorEngine):
    """The drafting half of a speculator engine, over the model of folder `path`."""

    def __init__(self, path: str) -> None:
        self._oracle, self.info = GenerationOracle(path), inspect_model(path, engine="oracle")
        self._random = torch.Generator().manual_seed(0)
        self._prompts: dict[str, KeptPrompt] = {}

    async def open_session(self, session: str, prompt: KeptPrompt, *, cache_salt: str | None = None) -> None:
        self._prompts[session] = prompt

    async def close_session(self, session: str) -> None:
        self._prompts.pop(session, None)

    async def draft(
        self, session: str, answer: Int32Array, count: int, *, temperature: float = 0.0, top_m: int = 0
    ) -> Drafted:
        if session not in self._prompts:
            raise SessionLostError(f"session {session} was never opened here")
        prompt, tokens, q = self._prompts[session], answer.tolist(), list[Top]()
        for _ in range(count):
            # The oracle's last row stands before the last token, which it does not read.
            logprobs = (await asyncio.to_thread(self._oracle.logprobs, prompt, [*tokens, 0]))[-1]
            if top_m:
                probs, ids = (logprobs / temperature).softmax(-1).topk(min(top_m, logprobs.numel()))
                q.append((probs / probs.sum(), ids))
                tokens.append(int(ids[torch.multinomial(probs, 1, generator=self._random)]))
            else:
                tokens.append(int(logprobs.argmax()))
        return Drafted(np.array(tokens[answer.size :], np.int32), *_flat(q))


def _flat(rows: list[Top]) -> tuple[Int32Array, np.ndarray]:
    """All ids, and all probabilities."""
    if not rows:
        return np.empty(0, np.int32), np.empty(0, np.float32)
    probs, ids = (torch.cat(part).numpy() for part in zip(*rows, strict=True))
    return ids.astype(np.int32), probs.astype(np.float32)
