"""The share of a trace's prompt tokens that prefix caches of growing size hold: a stock server, and Skim.

Computed by the mock engines' cache model over a trace, one request after the other, without time. In the same KV
memory Skim holds 1 / (keep rate + r) times as many prompts as a stock server, because its target holds the kept tokens
only (r: KV bytes per token of the speculator divided by those of the target). It is assumed that a prompt that begins
with a known one keeps what was kept for that one, so both pools find the same share.
"""

from collections.abc import Sequence
from typing import Any

from benchmarks.mock_engines.compute import MockPrefixCache
from benchmarks.replay.cost_profiles import LLAMA_70B, PROFILES, tokens_held
from benchmarks.replay.mooncake import TRACE_BLOCK, TracedRequest

CAPACITIES = tuple(2**k * 25_000 for k in range(9))
"""Tokens that the cache of a stock server of Llama 70B holds."""
KEEP_RATES = (0.1, 0.2)


def curves(requests: Sequence[TracedRequest], capacities: Sequence[int] = CAPACITIES) -> list[dict[str, Any]]:
    """One curve for the stock server and one for each pair and keep rate: `shares` by `gigabytes` of KV memory."""
    stock = {"system": "stock", "factor": 1.0, "shares": [hit_share(requests, tokens) for tokens in capacities]}
    found = [stock]
    for name, profile in PROFILES.items():
        for keep_rate in KEEP_RATES:
            held = [tokens_held(tokens, keep_rate, profile.ratio)[1] for tokens in capacities]
            found.append(
                {
                    "system": f"Skim {name}, keep {keep_rate}",
                    "factor": 1 / (keep_rate + profile.ratio),
                    "shares": [hit_share(requests, tokens) for tokens in held],
                }
            )
    return [{**curve, "gigabytes": [tokens * LLAMA_70B.kv_bytes / 1e9 for tokens in capacities]} for curve in found]


def hit_share(requests: Sequence[TracedRequest], capacity_tokens: int) -> float:
    """The share of all prompt tokens that a cache of `capacity_tokens` holds when their request arrives."""
    cache = MockPrefixCache(capacity_tokens, TRACE_BLOCK)
    cached = 0
    for request in requests:
        names = [block.to_bytes(8, "little") for block in request.blocks]
        cached += min(cache.match(names) * TRACE_BLOCK, request.prompt_tokens - 1)
        cache.hold(names)
    return cached / sum(request.prompt_tokens for request in requests)
