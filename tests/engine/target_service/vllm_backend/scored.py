"""Log probabilities of a prompt's last tokens, compared with the oracle."""

from typing import Any

import numpy as np

from kv_transfer.messages import READ_ONLY, GenerateRequest, KeptPrompt
from target_service.engine import TargetEngine
from tests.engine.target_service.vllm_backend.cases import VOCABULARY, collect, dense_prompt
from tests.reference.generation_oracle import GenerationOracle, joined

PROMPT, ANSWER, CHANGED = 150, 24, (3, 17)


async def scored_answer(engine: TargetEngine, oracle: GenerationOracle) -> dict[str, Any]:
    """An answer of which two tokens are changed: how its scores differ from the oracle's, and what was cached.

    The engine has read the whole blocks of the prompt before. Asked again, it has computed none of these tokens.
    """
    prompt = dense_prompt(PROMPT, seed=60)
    block = PROMPT // 32 * 32
    tokens, _, _ = joined(await collect(engine, prompt, "scored-answer", max_tokens=ANSWER))
    answer = np.array(tokens, np.int32)
    for place in CHANGED:
        answer[place] = (answer[place] + 1) % VOCABULARY
    await read(engine, KeptPrompt.dense(prompt.token_ids[:block]), "scored-before")
    cached, told = await read(engine, prompt.extended(answer), "scored", ANSWER)
    again = await read(engine, prompt.extended(answer), "scored-again", ANSWER)
    truth = oracle.logprobs(prompt, answer.tolist()).numpy()
    own = truth[np.arange(ANSWER), answer]
    assert [[one.token_id] for [one] in told] == [[token] for token in answer.tolist()]
    return {
        "cached": cached,
        "difference": float(max(abs(one.logprob - truth) for [one], truth in zip(told, own, strict=True))),
        "ranks": [one.rank for [one] in told],
        "true_ranks": (1 + (truth > own[:, None]).sum(axis=1)).tolist(),
        "again": again[1],
    }


async def read(engine: TargetEngine, prompt: KeptPrompt, name: str, scored: int = 0) -> tuple[int, Any]:
    """The cached tokens, and what is told of the scored ones."""
    request = GenerateRequest(name, prompt, dict(READ_ONLY), cache_salt="not that of the answer", scored=scored)
    [output] = [output async for output in engine.generate(request)]
    return output.cached_tokens, output.prompt_logprobs
