"""Sampling with remote drafts on the V2 model runner on CPU. Prints what it saw as one line of JSON."""

import asyncio
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch

from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import engine_options
from tests.engine.target_service.vllm_backend.test_remote_sampling import PROMPT, VOCABULARY, drafters_table, sample
from tests.reference.drafters import FakeSpeculator, drawing
from tests.reference.generation_oracle import GenerationOracle
from tests.reference.models import build_model
from tests.reference.sampling_oracle import chi_square_p, continuations

REQUESTS = 400
SAMPLINGS: dict[str, dict[str, Any]] = {
    "plain": {"temperature": 1.0, "top_p": 1.0},
    "biased": {"temperature": 0.8, "top_p": 1.0, "min_p": 0.15, "logit_bias": {3: 0.7, 8: -1.5}},
}


def by_difference(
    counts: Counter[tuple[int, int, int]], expected: torch.Tensor
) -> tuple[Counter[tuple[int, int, int]], torch.Tensor]:
    """The same by the third token minus the second one, modulo the vocabulary: few cells, for few requests.

    The second token has no draft.
    """
    summed: Counter[tuple[int, int, int]] = Counter()
    for (_, second, third), count in counts.items():
        summed[(third - second) % VOCABULARY, 0, 0] += count
    pairs = expected.sum(0)
    rows = torch.arange(VOCABULARY)
    return summed, torch.stack([pairs[rows, (rows + d) % VOCABULARY].sum() for d in range(VOCABULARY)])[:, None, None]


async def main(folder: Path) -> None:
    model = build_model(folder, "llama", vocab_size=VOCABULARY, layers=1, max_position=64)
    target = VllmTarget(
        model,
        decode={"method": "remote", "max_draft_tokens": 3},
        draft_channel={"deadline_s": 5.0},
        **engine_options("cpu", max_num_seqs=64, async_scheduling=True, gpu_memory_utilization=0.3),
    )
    oracle = GenerationOracle(model)
    table = drafters_table(oracle)
    seen: dict[str, Any] = {}
    try:
        async with FakeSpeculator(drawing(table)) as speculator:
            for name, sampling in SAMPLINGS.items():
                counts, accepted = await sample(target, speculator, REQUESTS, **sampling)
                expected = continuations(oracle, PROMPT, VOCABULARY, **sampling)
                seen[name] = {"p": chi_square_p(counts, expected), "accepted": accepted}
                print(name, seen[name], file=sys.stderr, flush=True)
        # Nearly all drafts are one token, which is reported as unlikely. So nearly all are accepted.
        drawn = np.full((VOCABULARY, VOCABULARY), 0.1 / VOCABULARY) + 0.9 * np.roll(np.eye(VOCABULARY), 1, axis=1)
        told = np.where(drawn > 0.5, 0.001, 1 / VOCABULARY)
        async with FakeSpeculator(drawing(drawn, told=told / told.sum(1, keepdims=True))) as liar:
            counts, _ = await sample(target, liar, REQUESTS // 2, **SAMPLINGS["plain"])
            expected = continuations(oracle, PROMPT, VOCABULARY, **SAMPLINGS["plain"])
            seen["wrong_q"] = chi_square_p(*by_difference(counts, expected))
    finally:
        target.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
