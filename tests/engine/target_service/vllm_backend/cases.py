"""What the target's engine tests share: engine options, kept prompts, greedy requests, comparison with the oracle."""

from pathlib import Path
from typing import Any

import numpy as np

from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt
from target_service.engine import TargetEngine
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import Family, build_model, random_prompt

VOCABULARY = 724
"""Ids that the tokenizer of the random checkpoints knows; models with more would sample some that cannot be sent."""

TOLERANCE = 1e-3
"""On log probabilities, in float32."""

GREEDY = {"temperature": 0.0, "max_tokens": 64, "logprobs": 3, "ignore_eos": True}


def engine_options(device: str, **options: Any) -> dict[str, Any]:
    """float32, small blocks and steps. On a GPU vLLM's defaults stay: V2 runner, CUDA graphs, async scheduling.

    On CPU a KV cache of 65,536 tokens: a larger one takes longer to fill with zeros than the engine to start.
    """
    common = {"dtype": "float32", "block_size": 32, "max_num_batched_tokens": 256, "seed": 0}
    by_device = {
        "cpu": {"enforce_eager": True, "num_gpu_blocks_override": 2048},
        "cuda": {"gpu_memory_utilization": 0.2},
    }
    return {**common, **by_device[device], **options}


def build_target(folder: Path, family: Family, **options: Any) -> str:
    """A random checkpoint; the tokenizer knows all of its token ids."""
    return build_model(folder, family, vocab_size=VOCABULARY, **options)


def kept_prompt(context: int, kept: int, *, seed: int = 0, lead_in: int = 0) -> KeptPrompt:
    """Keep `kept` random tokens of a random prompt, including its first `lead_in` tokens."""
    ids = np.array(random_prompt(context, seed=seed, vocab_size=VOCABULARY), np.int32)
    rng = np.random.default_rng(seed)
    chosen = rng.choice(np.arange(lead_in, context), kept - lead_in, replace=False)
    positions = np.sort(np.concatenate((np.arange(lead_in), chosen))).astype(np.int32)
    return KeptPrompt(ids[positions], positions, context)


def dense_prompt(length: int, *, seed: int = 0) -> KeptPrompt:
    return KeptPrompt.dense(random_prompt(length, seed=seed, vocab_size=VOCABULARY))


def cached_tokens(*tokens: int) -> list[int]:
    """How many of so many equal tokens are found: whole blocks of 32."""
    return [n // 32 * 32 for n in tokens]


async def collect(engine: TargetEngine, prompt: KeptPrompt, name: str = "r", **sampling: Any) -> list[GenerateOutput]:
    """All outputs of a greedy request of 64 tokens with logprobs. sampling: changes to the parameters."""
    return [o async for o in engine.generate(GenerateRequest(name, prompt, {**GREEDY, **sampling}))]


async def assert_right(engine: TargetEngine, oracle: GenerationOracle, prompt: KeptPrompt, name: str = "r") -> None:
    """Assert that 64 greedy tokens are the oracle's and that all candidates' log probabilities are close to it."""
    outputs = await collect(engine, prompt, name)
    tokens, logprobs, _ = joined(outputs)
    assert (len(tokens), len(logprobs), outputs[-1].finished) == (64, 64, True)
    assert oracle.wrong_tokens(prompt, tokens) == 0
    assert oracle.largest_difference(prompt, tokens, logprobs) <= TOLERANCE


async def wrong_share(engine: TargetEngine, oracle: GenerationOracle, prompt: KeptPrompt) -> float:
    """The share of 64 greedy tokens that the oracle would not have chosen."""
    tokens, _, _ = joined(await collect(engine, prompt))
    return oracle.wrong_tokens(prompt, tokens) / len(tokens)
