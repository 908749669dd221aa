"""What `benchmarks.scoring` runs inside the speculator's worker: its own scoring, on a cache filled at random."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from kv_transfer.messages import SelectionOptions
from speculator_service.scoring.importance import Aggregate
from speculator_service.vllm_backend.scored_requests import RequestLedger, ScoredRequest

READ_BYTES = 2**28
"""Size of the buffer whose reading gives the bandwidth: far beyond any cache."""


class ScoringBench:
    """Methods for `speculator_service.vllm_backend.worker.SpeculatorWorker` (vLLM's `worker_extension_cls`)."""

    # Attributes of the worker. They are only annotated: vLLM refuses an extension that defines what the worker has.
    _layers: list[Any]
    _ledger: RequestLedger
    _score: Callable[[ScoredRequest], Aggregate]

    def bench_fill(self, tokens: int) -> None:
        """Fill the cache blocks of a sequence of `tokens`: unwritten pages would all be the same zeros."""
        # Before any scoring: what the process holds without it.
        self._bench_baseline = _resident("VmRSS")
        for layer in self._layers:
            layer.kv_cache[: self._bench_blocks(tokens)[-1] + 1].normal_()
        self._bench_baseline = _resident("VmRSS")

    def bench_scoring(self, tokens: int, look_ahead: int, repeats: int) -> dict[str, Any]:
        """Score a prompt of `tokens` again and again, reading the bandwidth buffer in between.

        scoring_ms and read_gb_s are medians, peak_bytes the most that scoring added to this process's memory since
        `bench_fill` (all of it: what the allocator keeps for itself is memory too), key_bytes what has to be read.
        """
        layers, heads, size = len(self._layers), self._layers[0].num_heads, self._layers[0].head_size
        blocks = self._bench_blocks(tokens)
        options = {**SelectionOptions(look_ahead=look_ahead).model_dump(), "eos_token_ids": []}
        queries = {step: torch.randn(layers, heads, size) for step in range(look_ahead + 1)}
        request = ScoredRequest("bench", tokens, options, blocks, queries, {}, time.perf_counter())
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
        """The cache's blocks of the sequence that is scored, in no order: block 0 is vLLM's own."""
        count = -(-tokens // self._ledger._block_size)
        return (1 + torch.randperm(count, generator=torch.Generator().manual_seed(0))).tolist()


def _milliseconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return 1e3 * (time.perf_counter() - began)


@contextmanager
def _peak_memory() -> Iterator[Callable[[], int]]:
    """Gives a function for the most bytes that this process held since here. Linux."""
    Path("/proc/self/clear_refs").write_text("5")  # sets the high-water mark back
    yield lambda: _resident("VmHWM")


def _resident(name: str) -> int:
    """Bytes that /proc/self/status tells under `name`."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(f"{name}:")]
    return 1024 * int(line.split()[1])
