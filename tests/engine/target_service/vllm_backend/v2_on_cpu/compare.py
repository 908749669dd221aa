"""Runs the V2 model runner on CPU against the oracle and prints what it saw as one line of JSON.

Arguments: an empty folder for the checkpoint, and its family.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from kv_transfer.messages import KeptPrompt
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.broken_hooks import BreakableWorker
from tests.engine.target_service.vllm_backend.cases import (
    VOCABULARY,
    build_target,
    collect,
    dense_prompt,
    engine_options,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.continued import differs, rest, whole
from tests.engine.target_service.vllm_backend.scored import scored_answer
from tests.reference.generation_oracle import GenerationOracle, joined
from tests.reference.models import random_prompt
from tests.reference.segments import shuffled, with_late_chunk

TOKENS = 64


class Worker(BreakableWorker):
    """Tells which runner and which model state it has."""

    def names(self) -> tuple[str, str]:
        runner = type(self.model_runner)
        return f"{runner.__module__}.{runner.__name__}", type(self.model_runner.model_state).__name__


class Target(VllmTarget):
    worker_cls = "tests.engine.target_service.vllm_backend.v2_on_cpu.compare.Worker"

    async def rpc(self, method: str, *args: Any) -> list[Any]:
        return await self._engine.collective_rpc(method, args=args)


async def compare(target: Target, oracle: GenerationOracle) -> dict[str, Any]:
    async def one(prompt: KeptPrompt, name: str) -> dict[str, float]:
        outputs = await collect(target, prompt, name, max_tokens=TOKENS)
        tokens, logprobs, _ = joined(outputs)
        return {
            "wrong": oracle.wrong_tokens(prompt, tokens),
            "difference": oracle.largest_difference(prompt, tokens, logprobs),
            "cached_tokens": outputs[0].cached_tokens,
        }

    prompts = {
        "kept": kept_prompt(200, 60, seed=1),
        "plain": dense_prompt(50, seed=2),
        "chunked": kept_prompt(400, 150, seed=3),
        "shuffled": shuffled(kept_prompt(400, 150, seed=5)),
    }
    results = await asyncio.gather(*(one(p, name) for name, p in prompts.items()))
    seen: dict[str, Any] = dict(zip(prompts, results, strict=True))
    ids = np.array(random_prompt(200, seed=1, vocab_size=VOCABULARY), np.int32)
    dropped = np.setdiff1d(np.arange(200, dtype=np.int32), prompts["kept"].positions)[20:40]
    late = with_late_chunk(prompts["kept"], ids, dropped, last=8)
    seen["cached"], seen["late"] = await asyncio.gather(one(prompts["kept"], "cached"), one(late, "late"))
    answer = await whole(target, prompts["kept"], "whole", logit_bias={5: 8.0}, frequency_penalty=2.0, max_tokens=24)
    cuts = answer.cuts[::6]
    for name, told in (("cut", True), ("cut_untold", False)):
        rests = await asyncio.gather(*(rest(target, answer, cut, name, told=told) for cut in cuts))
        seen[name] = [differs(answer, cut, outputs) for cut, outputs in zip(cuts, rests, strict=True)]
    seen["scored"] = await scored_answer(target, oracle)
    seen["runner"], seen["model_state"] = zip(*await target.rpc("names"), strict=True)
    await target.rpc("falsify_positions", "withheld")
    seen["withheld"] = await one(kept_prompt(200, 60, seed=4), "withheld")
    return {**seen, "tokens": TOKENS}


def main(folder: Path, family: Any) -> None:
    model = build_target(folder, family, max_position=512, linear_attention=False)
    options = {"max_num_batched_tokens": 64, "max_num_seqs": 4, "approximate_positions": True}
    target = Target(model, **engine_options("cpu", **options))
    try:
        seen = asyncio.run(compare(target, GenerationOracle(model)))
    finally:
        target.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
