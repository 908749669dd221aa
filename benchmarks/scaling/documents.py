"""The load of `benchmarks.scaling.scale` with shared prefixes: questions about a few documents, at Poisson times.

Each part of the run has documents of its own, so its first questions meet no cache. Under `auto` the router chooses the
mode of each request.
"""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import aiohttp
import numpy as np

from benchmarks.harness.chat_client import ask
from skim_common.errors import SkimError

QUESTION_TOKENS = 64
_COMPLETIONS = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Questions:
    """model: the served name. count: documents. prompt_tokens: of a document and a question. token_ids: usable ids."""

    model: str
    count: int
    prompt_tokens: int
    token_ids: range

    def body(self, document: int, question: int, seed: int) -> dict[str, Any]:
        """The request of one question."""
        text = self._tokens(f"{seed} document {document}", self.prompt_tokens - QUESTION_TOKENS)
        prompt = text + self._tokens(f"{seed} question {question}", QUESTION_TOKENS)
        return {"model": self.model, "prompt": prompt, "max_tokens": 1, "temperature": 0.0, "ignore_eos": True}

    def _tokens(self, name: str, count: int) -> list[int]:
        return random.Random(name).choices(self.token_ids, k=count)


def send_questions(
    questions: Questions, url: str, requests: int, *, rate: float, seed: int, zero: float
) -> list[dict[str, Any]]:
    """The requests of one part, as `benchmarks.scaling.scale.requests_of` gives them, with how they ran.

    mode, reason: as in the headers. reused: kept tokens of an earlier selection. cached_share: of what the target read.
    """
    return asyncio.run(_send(questions, url, requests, rate, seed, zero))


async def _send(
    questions: Questions, url: str, requests: int, rate: float, seed: int, zero: float
) -> list[dict[str, Any]]:
    choose = random.Random(seed)
    plan = [(choose.expovariate(rate), choose.randrange(questions.count)) for _ in range(requests)]

    async def one(session: aiohttp.ClientSession, number: int, wait_s: float, document: int) -> dict[str, Any]:
        await asyncio.sleep(wait_s)
        sent = time.perf_counter() - zero
        try:
            timed = await ask(session, url + _COMPLETIONS, questions.body(document, number, seed))
        except (SkimError, aiohttp.ClientError):
            return {"s": sent, "ttft_s": None, "failed": True}
        told = timed.headers
        read = int(told["x-skim-kept-tokens"])
        return {
            "s": sent,
            "ttft_s": timed.first_ms / 1e3,
            "failed": False,
            "mode": told["x-skim-mode"],
            "reason": told["x-skim-reason"].partition(";")[0],
            "reused": int(told.get("x-skim-reused-tokens", 0)),
            "cached_share": timed.cached_tokens / read,
        }

    times = np.cumsum([wait for wait, _ in plan])
    timeout = aiohttp.ClientTimeout(total=600)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asked = (
            one(session, i, float(at), document) for i, (at, (_, document)) in enumerate(zip(times, plan, strict=True))
        )
        return list(await asyncio.gather(*asked))


def shared(requests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """How answered requests ran: counts by mode and reason, the share of speculative prompts that extend an earlier
    selection, and the mean cached share of what the target read.
    """
    ran = [request for request in requests if not request["failed"]]
    speculative = [request for request in ran if request["mode"] == "speculative"]
    return {
        "reasons": dict(Counter(f"{request['mode']}, {request['reason']}" for request in ran).most_common()),
        "extended_share": sum(request["reused"] > 0 for request in speculative) / max(1, len(speculative)),
        "cached_share": sum(request["cached_share"] for request in ran) / max(1, len(ran)),
    }


def described(result: Mapping[str, Any], documents: int, affinity: bool) -> str:
    """The sentences about shared documents. result: of `shared`."""
    reasons = ", ".join(f"{count} {reason}" for reason, count in result["reasons"].items())
    return (
        f"The requests of each part ask about {documents} documents. These times are those of a prompt without cached "
        "tokens: an engine computes only what its prefix cache does not hold. A dense prompt costs the target more. "
        f"Affinity is {'on' if affinity else 'off'}. The router chooses the mode: {reasons}. "
        f"{result['extended_share']:.0%} of the speculative prompts extend an earlier selection; the target had "
        f"{result['cached_share']:.0%} of what it was sent in its cache. "
    )
