"""Stock vLLM for comparison: an engine without HTTP, and a client with the request function of `vllm bench serve`."""

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import aiohttp
from vllm import SamplingParams
from vllm.benchmarks.lib.endpoint_request_func import (
    AIOHTTP_TIMEOUT,
    RequestFuncInput,
    async_request_openai_chat_completions,
)
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM

from demo_models.answers import read_server_timing
from skim_common.errors import SkimError
from vllm_hooks.start_up import cpu_processes


class StockEngine:
    """A plain AsyncLLM: vLLM's own worker and scheduler, no HTTP.

    Its only rank runs in the engine core's process, as in Skim's engines.
    """

    def __init__(self, engine: AsyncLLM) -> None:
        self._engine = engine
        self._names = itertools.count()

    @classmethod
    @contextmanager
    def started(
        cls, model: Path, options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> Iterator["StockEngine"]:
        """Start an engine with `options` (AsyncEngineArgs); `environment` is added to that of its processes."""
        with patch.dict(os.environ, {**environment, "VLLM_PLUGINS": ""}):
            args = AsyncEngineArgs(model=str(model), use_tqdm_on_load=False, **options)
            config = args.create_engine_config()
            with cpu_processes(config):
                engine = AsyncLLM.from_vllm_config(config)
        try:
            yield cls(engine)
        finally:
            engine.shutdown()

    async def forward_ms(self, *prompts: list[int]) -> float:
        """Milliseconds from submitting the prompts together to the first tokens of all. Nothing comes from the prefix
        cache.
        """
        began = time.perf_counter()
        await asyncio.gather(*map(self._first_token, prompts))
        return 1e3 * (time.perf_counter() - began)

    async def _first_token(self, token_ids: list[int]) -> None:
        prompt = tokens_input(list(token_ids), cache_salt=uuid.uuid4().hex)
        sampling = SamplingParams(
            temperature=0, max_tokens=1, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        async for _ in self._engine.generate(prompt, sampling, str(next(self._names))):
            pass


@dataclass(frozen=True)
class Reply:
    """ttft_ms: milliseconds from sending the request to the first token, as vLLM's benchmark measures it."""

    ttft_ms: float
    headers: Mapping[str, str]

    @property
    def server_timing(self) -> dict[str, float]:
        """Milliseconds by part; empty if the server sends no such header."""
        return read_server_timing(self.headers.get("server-timing", ""))


class StreamingClient:
    """Sends requests for streamed chat completions to OpenAI servers, one at a time."""

    async def __aenter__(self) -> "StreamingClient":
        # vLLM's request function returns neither headers nor the body of an error, so aiohttp's trace collects them.
        trace = aiohttp.TraceConfig()
        trace.on_request_end.append(self._note_response)
        self._headers: Mapping[str, str] = {}
        self._refusal = ""
        self._session = aiohttp.ClientSession(timeout=AIOHTTP_TIMEOUT, trace_configs=[trace])
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self._session.close()

    async def _note_response(self, _session: Any, _context: Any, ended: aiohttp.TraceRequestEndParams) -> None:
        self._headers = ended.response.headers
        self._refusal = await ended.response.text() if ended.response.status != 200 else ""

    async def ask(
        self, url: str, model: str, messages: list[Any], answer_tokens: int, body: Mapping[str, Any]
    ) -> Reply:
        """An answer of exactly `answer_tokens` tokens; end tokens are ignored. Raises SkimError if it fails."""
        request = RequestFuncInput(
            prompt="",
            chat_messages=messages,
            api_url=f"{url}/v1/chat/completions",
            prompt_len=0,
            output_len=answer_tokens,
            model=model,
            ignore_eos=True,
            extra_body={"temperature": 0, "cache_salt": uuid.uuid4().hex, **body},
        )
        output = await async_request_openai_chat_completions(request, self._session)
        if not output.success:
            lines = (self._refusal or output.error).strip().splitlines() or ["no reason given"]
            raise SkimError(f"{url} did not answer: {lines[-1]:.300}")
        return Reply(1e3 * output.ttft, self._headers)
