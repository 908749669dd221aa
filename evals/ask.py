"""Who answers a sample's prompt: two engines in this process, or a running Skim endpoint."""

import asyncio
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from evals.prompts import DENSE, NO_LOOK_AHEAD, SELECTORS, SPECULATOR, WRONG_ORIGIN, kept_prompts, render
from evals.tasks import Sample
from kv_transfer.errors import SkimError
from kv_transfer.messages import GenerateRequest, Int32Array, KeptPrompt
from kv_transfer.model_info import check_pair, inspect_model
from router.options import PrefillOptions

FINAL_ONLY = 2
"""vLLM's RequestOutputKind.FINAL_ONLY: one output, at the end."""

Case = tuple[str, float]
"""A selector and a keep rate; dense is (DENSE, 1.0)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """text, and the share of the prompt's tokens that the target read."""

    text: str
    kept: float


class Asker(Protocol):
    """Asks a sample's question in every way there is. selectors: which baselines it can measure."""

    selectors: tuple[str, ...]

    async def ask(self, sample: Sample) -> dict[Case, Answer]: ...
    def close(self) -> None: ...


def load_tokenizer(model: str) -> Any:
    """Raises ModelError for a folder that holds no usable model, SkimError for one without a chat template."""
    from transformers import AutoTokenizer

    inspect_model(model, engine="tokenizer")
    tokenizer = AutoTokenizer.from_pretrained(model)
    if not tokenizer.chat_template:
        raise SkimError(f"{model} has no chat template: the tasks are chat prompts, give an instruct model")
    return tokenizer


class Engines:
    """One speculator and one target engine in this process, without Ray; the prompt is scored once per look-ahead."""

    def __init__(
        self,
        target: str,
        speculator: str,
        *,
        engine: str,
        keep_rates: Sequence[float],
        look_ahead: int,
        max_tokens: int,
        target_options: Mapping[str, Any],
        speculator_options: Mapping[str, Any],
    ) -> None:
        """engine: vllm, transformers or mock; a wrong origin is to be had with vllm alone.

        Raises ModelError for models that do not fit, SkimError for an engine that does not start.
        """
        from speculator_service.factory import create_engine as create_speculator

        self._tokenizer = load_tokenizer(target)
        check_pair(inspect_model(speculator, engine=engine), inspect_model(target, engine=engine))
        self.selectors = tuple(name for name in SELECTORS if engine == "vllm" or name != WRONG_ORIGIN)
        self._rates = [rate for rate in keep_rates if rate < 1]
        self._options = PrefillOptions(look_ahead=look_ahead)
        self._max_tokens = max_tokens
        if engine == "vllm":
            os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        self._speculator = create_speculator(engine, speculator, options=speculator_options)
        try:
            self._target = _create_target(engine, target, target_options)
        except BaseException:
            self._speculator.close()
            raise

    async def ask(self, sample: Sample) -> dict[Case, Answer]:
        """Raises SkimError for a prompt that cannot be served, or that serving would not compress."""
        prompt = render(sample, self._tokenizer, self._options, self._max_tokens)
        # One after the other: the second finds the prompt in the prefix cache.
        with_steps = await self._score(sample, prompt.token_ids, self._options.look_ahead)
        without = await self._score(sample, prompt.token_ids, 0)
        asked: dict[Case, KeptPrompt] = {(DENSE, 1.0): KeptPrompt.dense(prompt.token_ids)}
        for rate in self._rates:
            options = self._options.selection.model_copy(update={"keep_rate": rate})
            kept = kept_prompts(prompt, with_steps, without, options, zlib.crc32(sample.seed.encode()))
            asked |= {(name, rate): kept[name] for name in self.selectors}
        # Likewise: a wrong origin shares its prompt with the speculator's selection.
        late = {case for case in asked if case[0] == WRONG_ORIGIN}
        answers: dict[Case, Answer] = {}
        for cases in ([case for case in asked if case not in late], [case for case in asked if case in late]):
            texts = await asyncio.gather(*(self._answer(sample, case, asked[case]) for case in cases))
            shares = (asked[case].token_ids.size / prompt.token_ids.size for case in cases)
            answers |= {case: Answer(text, share) for case, text, share in zip(cases, texts, shares, strict=True)}
        return answers

    async def _score(self, sample: Sample, token_ids: Int32Array, look_ahead: int) -> Any:
        options = self._options.selection.model_copy(update={"look_ahead": look_ahead})
        scores = await self._speculator.score(f"{sample.seed} {look_ahead}", token_ids, options)
        return scores.importance

    async def _answer(self, sample: Sample, case: Case, kept: KeptPrompt) -> str:
        sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": self._max_tokens, "output_kind": FINAL_ONLY}
        name, rate = case
        if name == WRONG_ORIGIN:
            from evals.vllm_wrong_origin import FROM_KEPT

            sampling["extra_args"] = {FROM_KEPT: True}
        request = GenerateRequest(f"{sample.seed} {name} {rate}", kept, sampling)
        outputs = [output async for output in self._target.generate(request)]
        return outputs[-1].completions[0].text

    def close(self) -> None:
        self._speculator.close()
        self._target.close()


def _create_target(engine: str, model: str, options: Mapping[str, Any]) -> Any:
    if engine == "vllm":
        from evals.vllm_wrong_origin import WrongOriginTarget

        return WrongOriginTarget(model, **options)
    from target_service.factory import create_engine

    return create_engine(engine, model, options=options)


class Endpoint:
    """A running Skim endpoint over the OpenAI client: dense and speculative, no other baseline."""

    selectors: tuple[str, ...] = (SPECULATOR, NO_LOOK_AHEAD)

    def __init__(
        self, url: str, *, keep_rates: Sequence[float], look_ahead: int, max_tokens: int, http_client: Any = None
    ) -> None:
        """url: with or without /v1. http_client: an httpx.AsyncClient. Raises SkimError without the openai package."""
        try:
            from openai import AsyncOpenAI
        except ImportError:
            raise SkimError("--endpoint needs the OpenAI client: pip install openai") from None
        base = url.rstrip("/")
        self._url = base if base.endswith("/v1") else f"{base}/v1"
        key = os.environ.get("OPENAI_API_KEY", "none")
        self._client = AsyncOpenAI(base_url=self._url, api_key=key, http_client=http_client)
        self._look_ahead, self._max_tokens = look_ahead, max_tokens
        self._rates = [rate for rate in keep_rates if rate < 1]
        self._model: str | None = None

    async def ask(self, sample: Sample) -> dict[Case, Answer]:
        """Raises SkimError if the endpoint does not answer, or did not run as it was told to."""
        from openai import OpenAIError

        cases: list[Case] = [(DENSE, 1.0), *((name, rate) for rate in self._rates for name in self.selectors)]
        try:
            if self._model is None:
                self._model = (await self._client.models.list()).data[0].id
            answers = await asyncio.gather(*(self._ask(sample, *case) for case in cases), return_exceptions=True)
            # Raised when all have ended, so that none goes on behind the error's back.
            if failed := next((answer for answer in answers if isinstance(answer, BaseException)), None):
                raise failed
        except OpenAIError as error:
            raise SkimError(f"the endpoint {self._url} did not answer: {error}") from None
        return {case: answer for case, answer in zip(cases, answers, strict=True) if isinstance(answer, Answer)}

    async def _ask(self, sample: Sample, name: str, rate: float) -> Answer:
        look_ahead = 0 if name == NO_LOOK_AHEAD else self._look_ahead
        options = {"keep_rate": rate, "look_ahead": look_ahead}
        assert self._model is not None
        raw = await self._client.chat.completions.with_raw_response.create(
            model=self._model,
            messages=sample.messages,  # type: ignore[arg-type]
            temperature=0,
            max_tokens=self._max_tokens,
            extra_body={"speculative_prefill": False if name == DENSE else options},
        )
        wanted, mode = "dense" if name == DENSE else "speculative", raw.headers.get("x-skim-mode")
        # A prompt that fell back to dense would count as a good selection.
        if mode != wanted:
            reason = raw.headers.get("x-skim-reason", "no Skim endpoint?")
            raise SkimError(f"{self._url} ran a {wanted} prompt {mode or 'without saying how'} ({reason})")
        kept, whole = (int(raw.headers[f"x-skim-{part}-tokens"]) for part in ("kept", "prompt"))
        return Answer(raw.parse().choices[0].message.content or "", kept / whole)

    def close(self) -> None:
        """The client's connections end with this process."""


def model_name(path: str | None) -> str | None:
    """The folder's name: where it lies is nobody's business."""
    return None if path is None else Path(path).name
