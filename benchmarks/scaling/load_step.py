"""A load step on one replica of each pool: `python -m benchmarks.scaling.load_step FILE.json`.

Both engines are vLLM with random weights, on a core each. Before the step, single prompts of other lengths measure how
fast each engine reads; at these speeds `benchmarks.report.simulated` compares the step with its simulation. Then
requests arrive at random times: at LIGHT, STEP and again LIGHT per second, whether or not the earlier ones are
answered. Every prompt is speculative and new to all caches.
"""

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np

from benchmarks.harness.chat_client import ask
from benchmarks.harness.models import Shape, bench_pair, random_prompt
from benchmarks.harness.servers import MODEL, skim_config
from benchmarks.report.machine import machine
from cluster.json_file import write_json
from cluster.serve.deployment import deployed

TARGET = Shape(layers=8, heads=8, kv_heads=4, intermediate=1408)
SPECULATOR = Shape(layers=4, heads=6, kv_heads=2, intermediate=1024)
KEEP_RATE = 0.2
ANSWER_TOKENS = 8
CALIBRATED = (1200, 1600, 2400)
"""Tokens of the prompts that measure the engines."""
REPEATS = 5
LENGTHS = (1100, 1500, 2000)
"""Tokens of the prompts of the step, equally often."""
LIGHT, STEP = 0.7, 2.1
"""Requests per second."""
PHASES_S = (50.0, 70.0, 90.0)
SEED = 1


def arrivals() -> list[tuple[float, int]]:
    """(seconds, prompt tokens) of each request."""
    random = np.random.default_rng(SEED)
    found, begin = [], 0.0
    for rate, seconds in zip((LIGHT, STEP, LIGHT), PHASES_S, strict=True):
        count = random.poisson(rate * seconds)
        found += [(begin + at, int(random.choice(LENGTHS))) for at in np.sort(random.uniform(0, seconds, count))]
        begin += seconds
    return found


async def _ask(session: aiohttp.ClientSession, url: str, tokens: int, number: int) -> dict[str, Any]:
    """The times of one new prompt, in seconds."""
    body = {
        "model": MODEL,
        "prompt": random_prompt(tokens, SEED, number).tolist(),
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "speculative_prefill": {"enabled": "always", "keep_rate": KEEP_RATE, "min_prompt_tokens": 1},
    }
    timed = await ask(session, f"{url}/v1/completions", body)
    return {
        "prompt_tokens": tokens,
        "kept_tokens": int(timed.headers["x-skim-kept-tokens"]),
        "first_s": timed.first_ms / 1e3,
        "parts_s": {name: ms / 1e3 for name, ms in timed.parts.items()},
    }


async def _run(url: str) -> dict[str, Any]:
    timeout, connector = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        await _ask(session, url, CALIBRATED[-1], 0)  # warm-up
        calibration = [
            await _ask(session, url, tokens, number) for number in range(1, REPEATS + 1) for tokens in CALIBRATED
        ]
        began = time.perf_counter()

        async def one(number: int, at: float, tokens: int) -> dict[str, Any]:
            await asyncio.sleep(max(0.0, began + at - time.perf_counter()))
            sent = time.perf_counter() - began
            return {"at_s": sent, **await _ask(session, url, tokens, 100 + number)}

        requests = await asyncio.gather(*(one(number, *asked) for number, asked in enumerate(arrivals())))
    return {"calibration": calibration, "requests": list(requests)}


def measured() -> dict[str, Any]:
    """The times of the calibration and of each request of the step. Raises SkimError."""
    pair, began = bench_pair(TARGET, SPECULATOR), machine()
    cores = {"target": (0,), "speculator": (1,)}
    longest = max(*CALIBRATED, *LENGTHS) + 128
    config = skim_config(pair.target, pair.speculator, longest, 16 * longest, cores=cores, method="none")
    router = config.router.model_copy(
        update={"max_wait_s": None, "select_timeout_s": 300.0, "admission_timeout_s": 300.0}
    )
    with deployed(config.model_copy(update={"router": router}), progress=lambda _: None) as url:
        found = asyncio.run(_run(url))
    settings = {"keep_rate": KEEP_RATE, "answer_tokens": ANSWER_TOKENS, "rates": [LIGHT, STEP, LIGHT]}
    settings |= {"phases_s": PHASES_S, "target": str(TARGET), "speculator": str(SPECULATOR)}
    return {"machine": began, "settings": settings, **found}


if __name__ == "__main__":
    file = Path(sys.argv[1])
    write_json(file, {**measured(), "command": f"python -m benchmarks.scaling.load_step {file.name}"})
