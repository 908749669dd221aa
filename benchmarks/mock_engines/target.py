"""A target without a model: deterministic tokens after configurable latencies, to test the router and the cluster."""

import asyncio
import hashlib
from collections.abc import AsyncGenerator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily

from benchmarks.mock_engines.answer import Answers, NewToken
from benchmarks.mock_engines.compute import MockCompute, Prefill
from benchmarks.mock_engines.sampling import Sampling, read_sampling
from benchmarks.mock_engines.session_ends import SessionEnds
from kv_transfer.arrays import Int32Array
from kv_transfer.draft_channel import connecting
from kv_transfer.limits import KvRole, check_leg, check_request
from kv_transfer.messages import GenerateOutput, GenerateRequest, KeptPrompt, TokenLogprob
from skim_common.errors import EngineUnavailableError, InvalidRequestError
from skim_common.models.costs import LINEAR
from skim_common.models.info import inspect_model
from skim_common.models.source import local_folder
from target_service.engine import TargetEngine


class MockTarget(TargetEngine):
    """TargetEngine whose tokens are hashes of the kept prompt and the answer so far, with probability 1 (logprob 0).

    model: a folder or a hub name; its config and tokenizer are read. The first token takes prefill_ms plus
    prefill_ms_per_token for each computed token; each further token takes decode_ms. cache_tokens: capacity of the
    prefix cache, in blocks of block_size tokens; 0 caches nothing. one_at_a_time: prefills wait for each other.
    fail_before_first: the number of requests that fail with EngineUnavailableError before their first token. Sampling
    fields that choose tokens have no effect.
    kv_role, kv_host: as in VllmTarget; a request that brings KV blocks needs no prefill.
    draft_channel: as in VllmTarget. The mock asks for no drafts. It ends the session of each answer that it has begun.
    tensor_parallel: without effect. started, running, aborted: counts of requests.
    """

    def __init__(
        self,
        model: str,
        *,
        prefill_ms: float = 0.0,
        prefill_ms_per_token: float = 0.0,
        decode_ms: float = 0.0,
        cache_tokens: int = 0,
        block_size: int = 16,
        one_at_a_time: bool = False,
        fail_before_first: int = 0,
        max_model_len: int | None = None,
        kv_role: KvRole | None = None,
        kv_host: str = "127.0.0.1",
        draft_channel: Mapping[str, Any] | None = None,
        tensor_parallel: int = 1,
    ) -> None:
        self._kv_role, self._kv_host = kv_role, kv_host
        info = inspect_model(model, engine="mock", max_model_len=max_model_len)
        self.info = replace(info, read_cost=LINEAR, cache_tokens=cache_tokens)
        self.compute = MockCompute(prefill_ms, prefill_ms_per_token, cache_tokens, block_size, one_at_a_time)
        self._decode_ms = decode_ms
        self._failures_left = fail_before_first
        self._session_ends = None if draft_channel is None else SessionEnds(connecting(draft_channel))
        self.started = self.running = self.aborted = 0

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """As TargetEngine.generate. Stops at max_tokens, or if a stop string or stop token occurs by chance."""
        max_tokens = check_request(request, self.info)
        check_leg(request, self._kv_role)
        sampling = read_sampling(request.sampling)
        if request.sampling.get("logprob_token_ids"):
            raise InvalidRequestError("the mock engine has no sampling parameter 'logprob_token_ids'")
        self.started += 1
        self.running += 1
        begun = finished = False
        try:
            if self._failures_left > 0:
                self._failures_left -= 1
                finished = True
                raise EngineUnavailableError("the mock target was told to fail")
            async for output in self._answer(request, sampling, max_tokens):
                begun, finished = True, output.finished
                yield replace(output, kv_blocks={"host": self._kv_host}) if request.prefill_only else output
        finally:
            self.running -= 1
            self.aborted += not finished
            if begun and self._session_ends is not None:
                self._session_ends.ended(request.prompt)

    async def _answer(
        self, request: GenerateRequest, sampling: Sampling, max_tokens: int
    ) -> AsyncGenerator[GenerateOutput, None]:
        prompt, arrived = request.prompt, request.kv_blocks is not None
        if arrived:
            done = Prefill(cached_tokens=int(prompt.token_ids.size), queue_ms=0.0, ms=0.0)
        else:
            done = await self.compute.prefill(prompt.token_ids, prompt.positions, request.cache_salt)
        asked, answer = request.prompt_and_answer()
        answers = Answers(sampling, max_tokens, self._tokenizer, answer.tolist())
        timings = {"queue": done.queue_ms, "prefill": done.ms}
        cache = {"cached_tokens": done.cached_tokens, "created_tokens": done.created_tokens}
        answers.on_first_output = {"timings": timings, **cache}
        if sampling.prompt_logprobs is not None:
            others = [TokenLogprob(id, -99.0, id + 2) for id in range(sampling.prompt_logprobs)]
            told = [None, *([TokenLogprob(id, 0.0, 1), *others] for id in prompt.token_ids[1:].tolist())]
            answers.on_first_output["prompt_logprobs"] = told
        if request.scored and done.cached_tokens < prompt.token_ids.size - request.scored:
            answers.on_first_output["prompt_logprobs"] = self._scores(prompt, request.scored)
        left, vocabulary = max_tokens - request.answered, self.info.vocab_size
        tokens = [mock_tokens(asked, left, vocabulary, index, answer).tolist() for index in range(sampling.n)]
        for count, step in enumerate(zip(*tokens, strict=True)):
            if answers.begun:
                await asyncio.sleep(self._decode_ms / 1e3)
            answers.add([NewToken(id, 0.0, [TokenLogprob(id, 0.0, 1)]) for id in step])
            if answers.finished:
                self._store(request, [answer[:count] for answer in tokens])
            output = answers.output()
            if output is not None:
                yield output
            if answers.finished:
                return

    def _scores(self, prompt: KeptPrompt, scored: int) -> list[list[TokenLogprob] | None]:
        """Of the last `scored` tokens: rank 1 if the mock would have answered so to what stands before them."""
        ids = prompt.token_ids
        begin = ids.size - scored
        first = KeptPrompt.dense(ids[:begin])
        likely = [
            int(mock_tokens(first, 1, self.info.vocab_size, answer=ids[begin:end])[0]) for end in range(begin, ids.size)
        ]
        return [
            [TokenLogprob(id, *((0.0, 1) if id == best else (-99.0, 2)))]
            for id, best in zip(ids[begin:].tolist(), likely, strict=True)
        ]

    def _store(self, request: GenerateRequest, answers: list[list[int]]) -> None:
        """Hold prompt and answers in the prefix cache. answers: without the last token, whose KV is not computed."""
        prompt = request.prompt
        for answer in answers:
            ids = np.append(prompt.token_ids, np.array(answer, np.int32))
            following = prompt.context_length + np.arange(len(answer), dtype=np.int32)
            places = np.append(prompt.positions, following)
            self.compute.cache.store(ids, places, request.cache_salt)

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(local_folder(self.info.path, weights=False), local_files_only=True)

    async def stats(self) -> dict[str, int]:
        return {"started": self.started, "running": self.running, "aborted": self.aborted}

    def metric_families(self) -> list[Metric]:
        """The requests begun, which tell what each replica of a deployment has taken."""
        return [CounterMetricFamily("skim_target_started", "requests", self.started)]

    async def check_health(self) -> None:
        """A mock is always healthy."""

    def close(self) -> None:
        """Disconnect from the drafters."""
        if self._session_ends is not None:
            self._session_ends.close()


def mock_tokens(
    prompt: KeptPrompt, count: int, vocab_size: int, index: int = 0, answer: Int32Array | None = None
) -> Int32Array:
    """The next `count` tokens of a mock's answer, int32 [count].

    The first token of an answer is a hash of the kept ids, their positions and the answer's index. Each next token is a
    hash of the prompt and of all tokens before it. answer: the start of the answer.
    """
    state = hashlib.sha256(prompt.token_ids.tobytes() + prompt.positions.tobytes())
    state.update(f"{prompt.context_length}".encode())
    known = [] if answer is None else answer.tolist()
    tokens: list[int] = []
    for place in range(len(known) + count):
        if place < len(known):
            token = known[place]
        else:
            seed = hashlib.sha256(state.digest() + bytes([index])) if place == 0 else state
            token = int.from_bytes(seed.digest()[:8], "little") % vocab_size
            tokens.append(token)
        state = hashlib.sha256(state.digest() + token.to_bytes(4, "little"))
    return np.array(tokens, np.int32)
