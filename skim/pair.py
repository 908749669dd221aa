"""`Pair`: a speculator and a target in this process, behind plain calls."""

import weakref
from collections.abc import AsyncGenerator, Container, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any, Literal, Self

import anyio

from cluster.config.load import load_config
from cluster.config.pools import CPU_KV_CACHE_GIB, PoolConfig
from cluster.config.schema import DeploymentConfig
from kv_transfer.messages import FINAL_ONLY, Completion, GenerateOutput, KeptPrompt, SelectRequest, TokenLogprob
from kv_transfer.options import ALWAYS, DecodeOptions
from router.decision.choice import selector_of
from router.options.request import PREFILL, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim.engine_thread import EngineThread
from skim.engines import EngineSettings, InProcessPools, SelectionFailedError, Unmetered
from skim.prompts import PromptInput, render
from skim.selection import PairSelection
from skim_common.environment import unless_set
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.source import is_within_reach

if TYPE_CHECKING:
    from router.dispatch.dispatcher import Dispatcher

MAX_TOKENS = 128
"""Most tokens of an answer unless a call says otherwise."""
FOREVER_S = 1e9


@dataclass(frozen=True, slots=True, eq=False)
class PairAnswer:
    """An answer of the target.

    completions: one, or sampling's `n`. prompt: what the target read. reason: why the prompt was compressed or not, one
    word as in the header `x-skim-reason`; None for an answer from a given selection. timings: milliseconds by part
    (queue, prefill). prompt_logprobs: as in GenerateOutput.
    """

    completions: list[Completion]
    prompt: KeptPrompt
    reason: str | None = None
    timings: Mapping[str, float] = field(default_factory=dict)
    prompt_logprobs: list[list[TokenLogprob] | None] | None = None

    @property
    def text(self) -> str:
        """The text of the first completion."""
        return self.completions[0].text


class Pair:
    """A speculator and a target in this process, or one of them; neither Ray nor HTTP.

    The calls work in plain scripts and in notebooks: the engines have an event loop in a thread of their own. Calls
    from several threads run at once, and the engines batch them. Close the pair, or use it as a context manager.
    """

    def __init__(
        self,
        target: str | PathLike[str] | EngineSettings | None = None,
        speculator: str | PathLike[str] | EngineSettings | None = None,
        *,
        engine: str = "vllm",
        target_options: Mapping[str, Any] | None = None,
        speculator_options: Mapping[str, Any] | None = None,
        tensor_parallel: int = 1,
        prefill: PrefillOptions | None = None,
        decode: DecodeOptions | None = None,
        reads_for: str | PathLike[str] | None = None,
    ) -> None:
        """Start the engines of two models, or of one.

        target, speculator: two models, each a folder or a hub name (owner/name or owner/name@revision).
        engine: vllm or mock. target_options, speculator_options: options of that engine, such as
        {"dtype": "float32"}. tensor_parallel: of the target. prefill: defaults of `select` and `ask`. decode: how
        decoding is speculated. By default it is not; only vLLM's target can. reads_for: for a pair without a target,
        the target that its selections are made for; it gives the tokenizer and does not start.
        Raises ModelError for models that cannot be used or do not fit, SkimError for an engine that does not start.
        """
        method = decode.method if decode else "none"
        if method != "none" and engine != "vllm":
            raise SkimError(f"the {engine} target takes no drafts: use engine vllm, or leave decode out")
        if method == "remote" and (target is None or speculator is None):
            raise SkimError("decode method remote needs a speculator and a target in one pair")
        if speculator is None and target is None:
            raise SkimError("a pair needs a target, a speculator or both")
        environment = unless_set({"VLLM_CPU_KVCACHE_SPACE": CPU_KV_CACHE_GIB}) if engine == "vllm" else {}
        if speculator is not None and not isinstance(speculator, EngineSettings):
            speculator = EngineSettings(fspath(speculator), engine, speculator_options or {}, environment=environment)
        if target is not None and not isinstance(target, EngineSettings):
            options = {**_decoding(decode), **(target_options or {})}
            target = EngineSettings(fspath(target), engine, options, tensor_parallel, environment)
        self._prefill, self._decode = prefill or PrefillOptions(), decode
        _refuse_of_routers(self._prefill.model_fields_set)
        model = None if reads_for is None else fspath(reads_for)
        self._thread = EngineThread(speculator=speculator, target=target, reads_for=model)
        self._engines = self._thread.engines
        # Also without `close`, no thread and no engine stays when the pair is collected or the process ends.
        weakref.finalize(self, self._thread.end)

    @classmethod
    def from_config(
        cls, config: str | PathLike[str] | DeploymentConfig, *, only: Literal["target", "speculator"] | None = None
    ) -> Self:
        """The pair of a deployment: one engine of each pool, or of the pool `only`.

        config: a deployment file, or what was read from one. Used are its models, their engines with options and
        variables, the options of selection and decoding, and `router.min_prompt_tokens`. A split target starts whole.
        Raises SkimError for a wrong file, and as `Pair` does.
        """
        if not isinstance(config, DeploymentConfig):
            config = load_config(fspath(config))
        drafted = config.target.engine == "vllm" and (only is None or config.decode.method != "remote")
        decode = config.decode if drafted else None
        drafting = _decoding(decode, deadline_s=config.channel.deadline_ms / 1e3)
        fields = {**config.selection.model_dump(), "min_prompt_tokens": config.router.min_prompt_tokens}
        return cls(
            None if only == "speculator" else _engine_settings(config.target, **drafting),
            None if only == "target" else _engine_settings(config.speculator),
            prefill=PrefillOptions(**fields),
            decode=decode,
            reads_for=config.target.model if is_within_reach(config.target.model) else None,
        )

    def select(self, prompt: PromptInput, **options: Any) -> PairSelection:
        """Score a prompt on the speculator and choose what is kept.

        prompt: text, token ids [M] or chat messages. Of chat messages, the template, the system prompt and the question
        are kept whatever their score, as in serving. options: fields of the request option `speculative_prefill`, in
        place of the pair's defaults.
        Raises InvalidRequestError for a prompt or an option that cannot be used, SkimError without a speculator.
        """
        if options.keys() & {"enabled", "min_prompt_tokens", "lossy"}:
            raise InvalidRequestError(
                "enabled, min_prompt_tokens and lossy are options of ask: select compresses any prompt"
            )
        return self._thread.call(self._select, prompt, self._resolved(options))

    def generate(
        self,
        selection: PairSelection | KeptPrompt,
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        sampling: Mapping[str, Any] | None = None,
    ) -> PairAnswer:
        """Answer from a selection on the target.

        selection: from `select`, from a file (`PairSelection.load`), or `KeptPrompt.dense(token_ids)` for a whole
        prompt. temperature: 0 decodes greedily. sampling: further fields of vLLM's SamplingParams.
        Raises InvalidRequestError for what the target cannot serve, SkimError without a target.
        """
        kept, target = selection, self._engines.target
        if isinstance(selection, PairSelection):
            kept = selection.kept
            if selection.tokenizer not in (None, target.info.fingerprint):
                raise InvalidRequestError(
                    "the selection has token ids of another tokenizer than the target's: select for this target"
                    " (--target of `skim select`, reads_for of `skim.Pair`)"
                )
        if not isinstance(kept, KeptPrompt):
            raise InvalidRequestError("generate takes a selection of `select` or a KeptPrompt")
        fields = {"max_tokens": max_tokens, "temperature": temperature, **(sampling or {})}
        return self._thread.call(self._generate, kept, fields)

    def ask(
        self,
        prompt: PromptInput,
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        sampling: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> PairAnswer:
        """Select and generate, by serving's own dispatcher: short prompts and those that nothing may be dropped of run
        dense.

        prompt, options: as in `select`; `enabled` and `min_prompt_tokens` decide whether the prompt is compressed. Here
        `auto` is `always`: no time decides. max_tokens, temperature, sampling: as in `generate`.
        Raises as `select` and `generate`; unlike serving, also where the selection fails. With `lossy="refuse"`,
        SkimError for a prompt that would lose tokens.
        """
        fields = {"max_tokens": max_tokens, "temperature": temperature, **(sampling or {})}
        return self._thread.call(self._ask, prompt, self._resolved(options), fields)

    def close(self) -> None:
        """Stop the engines; idempotent. Raises SkimError in a process that was forked from the pair's."""
        self._thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resolved(self, options: Mapping[str, Any]) -> PrefillOptions:
        """The pair's defaults, overridden by `options`."""
        _refuse_of_routers(options)
        return PREFILL.resolve(self._prefill, None, dict(options))

    async def _select(self, given: PromptInput, options: PrefillOptions) -> PairSelection:
        prompt, name = render(given, self._engines.tokenizer, options), self._engines.name("select")
        layout, speculator = prompt.layout(options), self._engines.speculator.info
        selector = selector_of(options, layout, speculator, layout.placed)
        scoring = options.selection.model_copy(update={"selector": selector})
        request = SelectRequest(name, prompt.token_ids, scoring, layout, return_importance=True, decode=self._decode)
        selection = await self._engines.select(request)
        return PairSelection.of(selection, options=scoring, layout=layout, tokenizer=speculator.fingerprint)

    async def _generate(self, kept: KeptPrompt, sampling: Mapping[str, Any]) -> PairAnswer:
        sampling = {**sampling, "output_kind": FINAL_ONLY}
        try:
            output = await _only(self._engines.generate(kept, sampling, decode=self._decode))
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._engines.end_session(kept.session)
            raise
        return PairAnswer(output.completions, kept, None, output.timings, output.prompt_logprobs)

    async def _ask(self, given: PromptInput, options: PrefillOptions, sampling: Mapping[str, Any]) -> PairAnswer:
        from router.dispatch.request import Prompt, Request
        from router.dispatch.state import CallState

        prompt = render(given, self._engines.tokenizer, options)
        options = options.model_copy(update={"enabled": ALWAYS if options.enabled else False})
        call = CallState(Request(options, self._decode or DecodeOptions(), decode_is_explicit=True))
        logprobs = sampling.get("prompt_logprobs") is not None
        prompted = Prompt(prompt, {**sampling, "output_kind": FINAL_ONLY}, sampling["max_tokens"] or 0, logprobs)
        try:
            output = await _only(self._dispatcher.run(self._engines.name("ask"), prompted, call))
        except SelectionFailedError as failed:
            raise failed.error from None
        [outcome] = call.prompts
        kept = outcome.selection.kept if outcome.selection else KeptPrompt.dense(prompt.token_ids)
        return PairAnswer(output.completions, kept, outcome.reason, output.timings, output.prompt_logprobs)

    @cached_property
    def _dispatcher(self) -> "Dispatcher":
        from router.dispatch.dispatcher import Dispatcher

        pools = InProcessPools(self._engines, drafts=self._decode is not None)
        settings = RouterConfig(guard=False, affinity=False, migration=False, select_timeout_s=FOREVER_S)
        return Dispatcher(pools, self._prefill, SpeculationOptions(), settings, Unmetered())


async def _only(outputs: AsyncGenerator[GenerateOutput, None]) -> GenerateOutput:
    """The one output of an answer with FINAL_ONLY."""
    async with aclosing(outputs):
        [output] = [output async for output in outputs]
    return output


def _refuse_of_routers(names: Container[str]) -> None:
    if "catch_up" in names:
        raise InvalidRequestError("catch_up is an option of requests to a router: leave it out")


def _decoding(decode: DecodeOptions | None, **channel: float) -> dict[str, Any]:
    """The target engine's options for this way of decoding. channel: arguments of its DraftClient."""
    if decode is None or decode.method == "none":
        return {}
    return {"decode": decode.model_dump()} | ({"draft_channel": channel} if decode.method == "remote" else {})


def _engine_settings(pool: PoolConfig, **options: Any) -> EngineSettings:
    """One replica's engine. options: further ones."""
    options = {**pool.options_of_engine, **options}
    return EngineSettings(pool.model, pool.engine, options, pool.tensor_parallel, pool.environment)
