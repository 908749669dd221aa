"""A speculator on a simulated engine, for the tests of its KV blocks and of its scheduler's turns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.engine.speculator_service.vllm_backend.by_heads import profile_of
from tests.engine.speculator_service.vllm_backend.simulated_engine import SimulatedEngine
from tests.reference.models import build_model

BLOCKS, BLOCK, SLOTS, SESSIONS = 64, 32, 4, 8


@contextmanager
def simulated_speculators(folder: Path) -> Iterator[Callable[..., Any]]:
    """start(blocks, hash function) -> a speculator on a simulated engine with too small a KV cache for all sessions.

    folder: for its model.
    """
    from speculator_service.vllm_backend import engine, start

    path = build_model(folder, "llama")

    def simulated(model, max_model_len, tensor_parallel, options):
        return SimulatedEngine(start._engine_config(model, max_model_len, tensor_parallel, options), **hashing)

    hashing = {}

    def start_engine(blocks=BLOCKS, additional_config=None, **options):
        hashing.update(options)
        speculator = engine.VllmSpeculator(
            path,
            max_model_len=1024,
            block_size=BLOCK,
            num_gpu_blocks_override=blocks,
            max_num_seqs=SLOTS,
            max_num_batched_tokens=256,
            additional_config=additional_config or {},
        )
        speculator.use_heads(profile_of([(0, 0, 1.0)]))
        return speculator

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "start_engine", simulated)
        yield start_engine
