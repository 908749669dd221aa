"""Answers to a sample's prompt, from two engines in this process or from a running Skim endpoint."""

import asyncio
import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cluster.in_process import prompts
from cluster.in_process.async_pair import AsyncPair, EngineSettings
from evals.prompts import DENSE, NO_LOOK_AHEAD, SELECTORS, SPECULATOR, WRONG_ORIGIN, kept_prompts, render
from evals.tasks import Sample
from kv_transfer.environment import unless_set
from kv_transfer.errors import SkimError
from kv_transfer.messages import Int32Array, KeptPrompt
from kv_transfer.model_source import public_name
from router.options import PrefillOptions
from target_service.sampling import FINAL_ONLY

Case = tuple[str, float]
"""A selector and a keep rate; dense is (DENSE, 1.0)."""


@dataclass(frozen=True, slots=True)
class Answer:
    """text: the target's answer. kept: share of the prompt's tokens that the target read."""

    text: str
    kept: float


class Asker(Protocol):
    """Asks a sample's question by every selector and at every keep rate. selectors: those that it can measure."""

    selectors: tuple[str, ...]

    async def ask(self, sample: Sample) -> dict[Case, Answer]: ...
    async def close(self) -> None: ...


def load_tokenizer(model: str) -> Any:
    """The tokenizer of a model, a folder or a hub name. Raises ModelError without a usable model, SkimError without a
    chat template.
    """
    tokenizer = prompts.load_tokenizer(model)
    if not tokenizer.chat_template:
        raise SkimError(f"{model} has no chat template: the tasks are chat prompts, give an instruct model")
    return tokenizer


class InProcess:
    """A speculator and a target engine in this process, without Ray: what the askers with engines share."""

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
        create_target: Callable[..., Any] | None = None,
    ) -> None:
        """Start the engines. engine: vllm, transformers or mock. create_target: as `EngineSettings.create`.

        Raises ModelError for models that do not fit, SkimError for an engine that does not start.
        """
        self._tokenizer = load_tokenizer(target)
        self._rates = [rate for rate in keep_rates if rate < 1]
        self._options = PrefillOptions(look_ahead=look_ahead)
        self._max_tokens = max_tokens
        environment = unless_set({"VLLM_CPU_KVCACHE_SPACE": "1"}) if engine == "vllm" else {}
        self._pair = AsyncPair(
            speculator=EngineSettings(speculator, engine, speculator_options, environment=environment),
            target=EngineSettings(target, engine, target_options, environment=environment, create=create_target),
        )

    async def _answer(self, kept: KeptPrompt, extra_args: Mapping[str, Any] | None = None) -> str:
        """The target's answer. extra_args: of vLLM's sampling parameters."""
        sampling: dict[str, Any] = {"temperature": 0.0, "max_tokens": self._max_tokens, "output_kind": FINAL_ONLY}
        if extra_args:
            sampling["extra_args"] = dict(extra_args)
        outputs = [output async for output in self._pair.generate(kept, sampling)]
        return outputs[-1].completions[0].text

    async def close(self) -> None:
        """Stop both engines."""
        await self._pair.close()


class Engines(InProcess):
    """Every selector, from engines in this process. A prompt is scored once per look-ahead."""

    def __init__(self, target: str, speculator: str, *, engine: str, **settings: Any) -> None:
        """As `InProcess`. Only vllm can decode from a wrong origin."""
        self.selectors = tuple(name for name in SELECTORS if engine == "vllm" or name != WRONG_ORIGIN)
        create = _create_wrong_origin if engine == "vllm" else None
        super().__init__(target, speculator, engine=engine, create_target=create, **settings)

    async def ask(self, sample: Sample) -> dict[Case, Answer]:
        """Raises SkimError for a prompt that cannot be served, or that serving would not compress."""
        prompt = render(sample, self._tokenizer, self._options)
        # One after the other: the second call finds the prompt in the prefix cache.
        with_steps = await self._score(prompt.token_ids, self._options.look_ahead)
        without = await self._score(prompt.token_ids, 0)
        asked: dict[Case, KeptPrompt] = {(DENSE, 1.0): KeptPrompt.dense(prompt.token_ids)}
        for rate in self._rates:
            options = self._options.selection.model_copy(update={"keep_rate": rate})
            kept = kept_prompts(prompt, with_steps, without, options, zlib.crc32(sample.seed.encode()))
            asked |= {(name, rate): kept[name] for name in self.selectors}
        # A wrong origin has the same prompt as the speculator's selection: asked later, it finds that in the cache too.
        late = {case for case in asked if case[0] == WRONG_ORIGIN}
        answers: dict[Case, Answer] = {}
        for cases in ([case for case in asked if case not in late], [case for case in asked if case in late]):
            texts = await asyncio.gather(*(self._answer(asked[case], _extra_args(case)) for case in cases))
            shares = (asked[case].token_ids.size / prompt.token_ids.size for case in cases)
            answers |= {case: Answer(text, share) for case, text, share in zip(cases, texts, shares, strict=True)}
        return answers

    async def _score(self, token_ids: Int32Array, look_ahead: int) -> Any:
        """The tokens' importance, float32 [M]."""
        options = self._options.selection.model_copy(update={"look_ahead": look_ahead})
        scores = await self._pair.speculator.score(self._pair.name("score"), token_ids, options)
        return scores.importance


def _extra_args(case: Case) -> Mapping[str, Any]:
    if case[0] != WRONG_ORIGIN:
        return {}
    from evals.vllm_wrong_origin import FROM_KEPT

    return {FROM_KEPT: True}


def _create_wrong_origin(kind: str, model: str, *, tensor_parallel: int, options: Mapping[str, Any]) -> Any:
    """A vLLM target that can decode from a wrong origin; arguments as `target_service.factory.create_engine`."""
    from evals.vllm_wrong_origin import WrongOriginTarget

    return WrongOriginTarget(model, tensor_parallel=tensor_parallel, **options)


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
        """Raises SkimError if the endpoint does not answer, or did not run a prompt as the request says."""
        from openai import OpenAIError

        cases: list[Case] = [(DENSE, 1.0), *((name, rate) for rate in self._rates for name in self.selectors)]
        try:
            if self._model is None:
                self._model = (await self._client.models.list()).data[0].id
            answers = await asyncio.gather(*(self._ask(sample, *case) for case in cases), return_exceptions=True)
            # Raised after all have ended: no request keeps running.
            if failed := next((answer for answer in answers if isinstance(answer, BaseException)), None):
                raise failed
        except OpenAIError as error:
            raise SkimError(f"the endpoint {self._url} did not answer: {error}") from None
        return {case: answer for case, answer in zip(cases, answers, strict=True) if isinstance(answer, Answer)}

    async def _ask(self, sample: Sample, name: str, rate: float) -> Answer:
        look_ahead = 0 if name == NO_LOOK_AHEAD else self._look_ahead
        # Without reuse, or one rate's selection would extend that of another rate.
        options = {"enabled": True, "keep_rate": rate, "look_ahead": look_ahead, "reuse": "off"}
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

    async def close(self) -> None:
        """Close the client's connections."""
        await self._client.close()


def model_name(path: str | None) -> str | None:
    """The folder's name, or the hub name. Results do not show where a folder lies."""
    return None if path is None else public_name(path)
