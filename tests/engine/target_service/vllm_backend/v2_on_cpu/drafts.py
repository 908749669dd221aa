"""Remote drafts on the V2 model runner on CPU. Prints what it saw as one line of JSON."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from kv_transfer.messages import GenerateRequest
from kv_transfer.options import DecodeOptions
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import (
    VOCABULARY,
    build_target,
    dense_prompt,
    engine_options,
    kept_prompt,
)
from tests.engine.target_service.vllm_backend.drafting import (
    PLAIN,
    Case,
    decode,
    gained,
    plain_cases,
    with_session,
    wrong_answers,
)
from tests.reference.drafters import FakeSpeculator, knowing, lies
from tests.reference.generation_oracle import GenerationOracle, joined

TOKENS, MOST = 24, 3
PENALTIES = {"repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.3, "min_tokens": 8}


class Target(VllmTarget):
    worker_cls = "tests.engine.target_service.vllm_backend.v2_on_cpu.compare.Worker"

    async def rpc(self, method: str, *args: Any) -> list[Any]:
        return await self._engine.collective_rpc(method, args=args)


async def greedy(target: Target, oracle: GenerationOracle) -> dict[str, Any]:
    """Kept and dense prompts in one batch, with and without drafts, and dishonest drafters."""
    prompts = [kept_prompt(120 + 11 * i, 40 + i, seed=i) for i in range(4)] + [dense_prompt(50, seed=9)]
    cases = await plain_cases(target, prompts, "case", tokens=TOKENS)
    seen: dict[str, Any] = {"plain": [oracle.wrong_tokens(c.prompt, c.answer) for c in cases]}
    seen["drafts_of_plain"] = (await target.decode_stats())["drafts"]
    answers = {c.name: c.answer for c in cases}
    async with FakeSpeculator(knowing(answers, 0.25, VOCABULARY)) as speculator:
        options = {"max_draft_tokens": MOST}
        for name, chosen in {
            "drafted": {},
            "look_ahead": {"look_ahead": 5},
            "fewer": {"max_draft_tokens": 1},
            "adaptive": {"adaptive": True},
        }.items():
            before = await target.decode_stats()
            wrong = await wrong_answers(target, cases, speculator, **{**options, **chosen})
            seen[name] = {"wrong": wrong, **gained(before, await target.decode_stats())}
        alone = await asyncio.gather(
            decode(target, cases[0].prompt, "beside", PLAIN, max_tokens=TOKENS),
            wrong_answers(target, cases[1:3], speculator, **options),
        )
        seen["beside"] = [alone[0] == cases[0].answer, alone[1]]
        speculator.draft = lies(VOCABULARY)["random_tokens"]
        seen["lied_to"] = await wrong_answers(target, cases[:2], speculator, **options)
        speculator.draft = knowing(answers, 0.25, VOCABULARY)
        seen["changed"] = await changed(target, speculator, cases[0])
        logprobs = await collect_drafted(target, speculator, cases[1])
        seen["logprob_difference"] = oracle.largest_difference(cases[1].prompt, *logprobs)
        seen["structured"] = await structured(target, speculator, cases[3])
    return seen


async def changed(target: Target, speculator: FakeSpeculator, case: Case) -> list[str]:
    """The sampling parameters with which drafts change a greedy answer."""
    wrong = []
    for name, sampling in {"penalties": PENALTIES, "logit_bias": {"logit_bias": {31: 8.0, 57: 8.5}}}.items():
        sampling = {**sampling, "max_tokens": TOKENS}
        plain = await decode(target, case.prompt, f"{name}-plain", PLAIN, **sampling)
        other = Case(f"{name}-drafted", case.prompt, plain)
        speculator.draft = knowing({other.name: plain}, 0.25, VOCABULARY)
        options = DecodeOptions(max_draft_tokens=MOST, adaptive=False)
        drafted = await decode(target, with_session(other, speculator), other.name, options, **sampling)
        wrong += [name] * (drafted != plain or plain == case.answer)
    speculator.draft = knowing({case.name: case.answer}, 0.25, VOCABULARY)
    return wrong


async def collect_drafted(target: Target, speculator: FakeSpeculator, case: Case) -> tuple[list[int], Any]:
    speculator.draft = knowing({case.name: case.answer}, 0.25, VOCABULARY)
    options = DecodeOptions(max_draft_tokens=MOST, adaptive=False)
    sampling = {"temperature": 0.0, "max_tokens": TOKENS, "logprobs": 3, "ignore_eos": True}
    request = GenerateRequest(case.name, with_session(case, speculator), sampling, decode=options)
    tokens, logprobs, _ = joined([o async for o in target.generate(request)])
    return tokens, logprobs


async def structured(target: Target, speculator: FakeSpeculator, case: Case) -> list[Any]:
    """Answers of a grammar, without and with drafts that break it in part."""
    sampling = {"structured_outputs": {"regex": "[0-9]{6}x[a-f]{4}"}, "max_tokens": TOKENS, "ignore_eos": False}
    plain = [o async for o in target.generate(GenerateRequest("regex", case.prompt, {"temperature": 0.0, **sampling}))]
    tokens, _, text = joined(plain)
    speculator.draft = knowing({"drafted-regex": tokens}, 0.25, VOCABULARY)
    prompt = with_session(Case("drafted-regex", case.prompt, tokens), speculator)
    options = DecodeOptions(max_draft_tokens=MOST, adaptive=False)
    request = GenerateRequest("drafted-regex", prompt, {"temperature": 0.0, **sampling}, decode=options)
    drafted = joined([o async for o in target.generate(request)])
    return [text, drafted[2], tokens == drafted[0]]


async def main(folder: Path, mode: str) -> None:
    """mode: `sync`, `async` (scheduling), or `ranks` (async scheduling, two tensor-parallel ranks)."""
    model = build_target(folder, "llama", max_position=512)
    scheduling = {"async_scheduling": mode != "sync"}
    target = Target(
        model,
        decode={"method": "remote", "max_draft_tokens": MOST},
        draft_channel={"deadline_s": 5.0},
        tensor_parallel=2 if mode == "ranks" else 1,
        **engine_options(
            "cpu",
            max_num_batched_tokens=64,
            max_num_seqs=8,
            **scheduling,
            gpu_memory_utilization=0.3,
        ),
    )
    try:
        seen = await greedy(target, GenerationOracle(model))
        seen["runner"], _ = zip(*await target.rpc("names"), strict=True)
    finally:
        target.close()
    print(json.dumps(seen))


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
