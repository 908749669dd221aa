"""The part of `benchmarks.engines.scoring` inside the speculator's worker: scoring on a cache of random values."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kv_transfer.options import SelectionOptions
from speculator_service.vllm_backend.capture.scored_requests import RequestLedger, ScoredRequest

READ_BYTES = 2**28
"""Size of the buffer that is read to measure the bandwidth; much larger than any CPU cache."""


class ScoringBench:
    """Methods for `speculator_service.vllm_backend.worker.SpeculatorWorker` (vLLM's `worker_extension_cls`)."""

    # Attributes of the worker. They are only annotated: vLLM refuses an extension that defines what the worker has.
    _layers: list[Any]
    _ledger: RequestLedger
    _score: Callable[[ScoredRequest], torch.Tensor]

    def bench_fill(self, tokens: int) -> None:
        """Fill the cache blocks of a sequence of `tokens` with random values.

        Pages that were never written share one page of zeros, which would be read from the CPU's cache.
        """
        for layer in self._layers:
            layer.kv_cache[: max(self._bench_blocks(tokens)) + 1].normal_()
        self._bench_baseline = _resident("VmRSS")

    def bench_scoring(self, tokens: int, look_ahead: int, repeats: int) -> dict[str, Any]:
        """Score a prompt of `tokens` several times and read the bandwidth buffer in between.

        scoring_ms and read_gb_s are medians. peak_bytes: largest growth of this process's memory since `bench_fill`,
        with the memory that the allocator keeps. key_bytes: size of the prompt's keys.
        """
        layers, heads, size = len(self._layers), self._layers[0].num_heads, self._layers[0].head_size
        blocks = self._bench_blocks(tokens)
        asked = {"look_ahead": look_ahead, "rows": [], "steps": look_ahead + 1, "eos_token_ids": []}
        options = {**SelectionOptions().model_dump(), **asked}
        queries = {tokens - 1 + step: torch.randn(layers, heads, size) for step in range(look_ahead + 1)}
        ahead = dict.fromkeys(range(look_ahead), 0)
        request = ScoredRequest("bench", tokens, options, blocks, queries, ahead, time.perf_counter())
        buffer = torch.ones(READ_BYTES // 4)
        scoring, reading = [], []
        with torch.inference_mode(), _peak_memory() as peak:
            for _ in range(repeats + 1):
                scoring.append(_milliseconds(lambda: self._score(request)))
                reading.append(_milliseconds(buffer.sum))
        cache = self._layers[0].kv_cache
        return {
            "scoring_ms": statistics.median(scoring[1:]),
            "read_gb_s": READ_BYTES / 1e6 / statistics.median(reading[1:]),
            "peak_bytes": peak() - self._bench_baseline - READ_BYTES,
            "key_bytes": layers * tokens * cache.shape[1] * size * cache.element_size(),
        }

    def _bench_blocks(self, tokens: int) -> list[int]:
        """The cache blocks of the scored sequence, in random order. Block 0 is reserved by vLLM."""
        count = -(-tokens // self._ledger._block_size)
        return (1 + torch.randperm(count, generator=torch.Generator().manual_seed(0))).tolist()


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


@contextmanager
def _peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function that returns the largest memory of this process since now, in bytes. Linux only."""
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # resets VmHWM
    yield lambda: _resident("VmHWM")


def _resident(name: str) -> int:
    """The bytes in the line `name` of /proc/self/status."""
    [line] = [
        line
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
        if line.startswith(f"{name}:")
    ]
    return 1024 * int(line.split()[1])
