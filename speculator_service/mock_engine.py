"""A speculator without a model: deterministic scores, latencies by choice, for trying everything around an engine."""

import asyncio
from time import perf_counter

import numpy as np
import torch

from kv_transfer.errors import EngineUnavailableError
from kv_transfer.messages import Int32Array, SelectionOptions
from kv_transfer.model_info import inspect_model
from speculator_service.engine import Scores
from speculator_service.limits import check_length

_KNUTH = np.uint64(2654435761)  # multiplicative hashing, The Art of Computer Programming, 6.4


class MockSpeculator:
    """Scores a token by a hash of its id. Reads the model folder's config and tokenizer only.

    started, aborted, running: calls of `score` begun, cancelled, and under way.
    """

    def __init__(
        self,
        model: str,
        *,
        latency_ms: float = 0.0,
        ms_per_token: float = 0.0,
        fail_every: int = 0,
        max_model_len: int | None = None,
    ) -> None:
        """A call takes latency_ms + ms_per_token * M. fail_every n: each nth call raises EngineUnavailableError."""
        self.info = inspect_model(model, engine="mock", max_model_len=max_model_len)
        self.started = self.aborted = self.running = 0
        self._latency_ms = latency_ms
        self._ms_per_token = ms_per_token
        self._fail_every = fail_every
        self._closed = False

    async def score(self, request_id: str, token_ids: Int32Array, options: SelectionOptions) -> Scores:
        """As `SpeculatorEngine.score`: importance from token ids alone, look-ahead tokens from the last id."""
        await self.check_health()
        check_length(int(token_ids.size), options.look_ahead, self.info)
        self.started += 1
        if self._fail_every and self.started % self._fail_every == 0:
            raise EngineUnavailableError(f"the mock speculator fails every {self._fail_every} calls, as it was told to")
        start = perf_counter()
        self.running += 1
        try:
            await asyncio.sleep((self._latency_ms + self._ms_per_token * token_ids.size) / 1e3)
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1
        tokens = [int(token_ids[-1])]
        for _ in range(options.look_ahead):
            tokens.append(int(_hash(np.array(tokens[-1:])) * self.info.vocab_size))
        timings = {"queue": 0.0, "speculate": (perf_counter() - start) * 1e3}
        return Scores(torch.from_numpy(_hash(token_ids)), tokens[1:], timings)

    async def check_health(self) -> None:
        if self._closed:
            raise EngineUnavailableError("the mock speculator is closed")

    def close(self) -> None:
        self._closed = True


def _hash(ids: np.ndarray) -> np.ndarray:
    """float32 in [0, 1), one for each id."""
    top = (ids.astype(np.uint64) + np.uint64(1)) * _KNUTH % np.uint64(2**32) >> np.uint64(8)
    return top.astype(np.float32) / np.float32(2**24)
