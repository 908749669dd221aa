"""Answers to a sample's prompt from a running Skim endpoint."""

import asyncio
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evals.run.ask import Answer, Case, cases_of
from evals.selection.selectors import DENSE, SELECTORS
from evals.tasks.quiz import Message
from evals.tasks.registry import Sample
from skim_common.errors import SkimError
from skim_common.proxies import client_options


@dataclass(frozen=True, slots=True)
class Sent:
    """An answer with the headers `x-skim-mode` and `x-skim-reason`; the mode is empty if there are none."""

    answer: Answer
    mode: str
    reason: str


class Endpoint:
    """A running Skim endpoint over the OpenAI client: dense and what serving can select, no other baseline."""

    def __init__(
        self,
        url: str,
        *,
        keep_rates: Sequence[float],
        look_ahead: int,
        max_tokens: int,
        selectors: Sequence[str] = tuple(SELECTORS),
        http_client: Any = None,
    ) -> None:
        """url: with or without /v1. selectors: names; those that are not served are left out. http_client: an
        httpx.AsyncClient. Raises SkimError without the openai package.
        """
        try:
            from openai import AsyncOpenAI, DefaultAsyncHttpxClient
        except ImportError:
            raise SkimError("--endpoint needs the OpenAI client: pip install openai") from None
        base = url.rstrip("/")
        self._url = base if base.endswith("/v1") else f"{base}/v1"
        key = os.environ.get("OPENAI_API_KEY", "none")
        http = http_client or DefaultAsyncHttpxClient(**client_options(base))
        self._client = AsyncOpenAI(base_url=self._url, api_key=key, http_client=http)
        self._look_ahead, self._max_tokens = look_ahead, max_tokens
        self._rates = [rate for rate in keep_rates if rate < 1]
        self.selectors = tuple(name for name in selectors if SELECTORS[name].served is not None)
        self._model: str | None = None

    @property
    def cases(self) -> list[Case]:
        """All cases of a sample."""
        return cases_of(self.selectors, self._rates)

    async def ask(self, sample: Sample, known: Collection[Case] = ()) -> dict[Case, Answer]:
        """Raises SkimError if the endpoint does not answer, or did not run a prompt as the request says."""
        await self._find_model()
        cases = [case for case in self.cases if case not in known]
        answers = await asyncio.gather(*(self._ask(sample, *case) for case in cases), return_exceptions=True)
        # Raised after all have ended: no request keeps running.
        if failed := next((answer for answer in answers if isinstance(answer, BaseException)), None):
            raise failed
        return {case: answer for case, answer in zip(cases, answers, strict=True) if isinstance(answer, Answer)}

    async def _ask(self, sample: Sample, name: str, rate: float) -> Answer:
        if name == DENSE:
            return await self._answer(sample, False, "dense")
        # Without reuse, or one rate's selection would extend that of another rate.
        options: dict[str, Any] = {"enabled": "always", "look_ahead": self._look_ahead, "reuse": "off"}
        if SELECTORS[name].rated:
            options["keep_rate"] = rate
        return await self._answer(sample, options | dict(SELECTORS[name].served or {}), "speculative")

    async def _answer(self, sample: Sample, prefill: dict[str, Any] | bool, wanted: str) -> Answer:
        """The answer to a prompt that must run in the mode `wanted`."""
        sent = await self._send(sample.messages, prefill, sample.max_tokens)
        # A prompt that fell back to dense would count as a good selection.
        if sent.mode != wanted:
            raise self._wrong(wanted, sent)
        return sent.answer

    def _wrong(self, wanted: str, sent: "Sent") -> SkimError:
        return SkimError(f"{self._url} ran a {wanted} prompt {sent.mode or 'without saying how'} ({sent.reason})")

    async def _send(self, messages: list[Message], prefill: dict[str, Any] | bool, limit: int | None) -> "Sent":
        """One request. prefill: its field `speculative_prefill`. limit: as `Sample.max_tokens`."""
        with self._reported():
            raw = await self._client.chat.completions.with_raw_response.create(
                model=await self._find_model(),
                messages=messages,  # type: ignore[arg-type]
                temperature=0,
                max_tokens=min(self._max_tokens, limit or self._max_tokens),
                extra_body={"speculative_prefill": prefill},
            )
            text = raw.parse().choices[0].message.content or ""
        kept, whole = (int(raw.headers.get(f"x-skim-{part}-tokens", 0)) for part in ("kept", "prompt"))
        mode, reason = (raw.headers.get(f"x-skim-{part}") for part in ("mode", "reason"))
        return Sent(Answer(text, kept, whole), mode or "", reason or "no Skim endpoint?")

    async def _find_model(self) -> str:
        """The endpoint's first model."""
        if self._model is None:
            with self._reported():
                self._model = (await self._client.models.list()).data[0].id
        return self._model

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raise the client's errors as SkimError."""
        from openai import OpenAIError

        try:
            yield
        except OpenAIError as error:
            raise SkimError(f"the endpoint {self._url} did not answer: {error}") from None

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()
