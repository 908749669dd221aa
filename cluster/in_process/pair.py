"""`Pair`: a speculator and a target in this process, behind plain calls. `skim` shows it to users."""

import weakref
from collections.abc import Container, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict, Unpack

from cluster.config.load import load_config
from cluster.config.pools import CPU_KV_CACHE_GIB, PoolConfig
from cluster.config.schema import DeploymentConfig
from cluster.in_process.async_pair import AsyncPair, EngineSettings
from cluster.in_process.event_loop import EventLoopThread
from cluster.in_process.prompts import PromptInput, render
from cluster.in_process.selection import PairSelection
from kv_transfer.messages import FINAL_ONLY, Completion, KeptPrompt, SelectRequest, TokenLogprob
from kv_transfer.options import ALWAYS, DecodeOptions
from router.options.request import PREFILL, Keep, PrefillOptions, SpeculationOptions
from router.options.settings import RouterConfig
from skim_common.environment import unless_set
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.source import is_within_reach

if TYPE_CHECKING:
    from router.dispatch.dispatcher import Dispatcher

MAX_TOKENS = 128
"""Most tokens of an answer unless a call says otherwise."""
FOREVER_S = 1e9


class SelectFields(TypedDict, total=False):
    """What a call of `Pair.select` may say: SelectionOptions' fields, and tokens that are kept whatever their score."""

    keep_rate: float | Literal["auto"]
    coverage: float | None
    min_keep: float
    selector: Literal["speculator", "lexical"]
    scoring: Literal["attention", "heads"]
    read: Literal["whole", "windows"]
    read_again: Literal["on", "off"]
    window_tokens: int
    look_ahead: int
    chunk_size: int
    layers: Literal["all", "last_half", "last4", "last1"]
    aggregation: Literal["max", "head_max_layer_mean"]
    granularity: Literal["text", "chunk", "token"]
    protect_last: int
    reuse: Literal["on", "off"]
    max_keep: float | None
    protected_spans: list[list[int]]
    keep_by_role: dict[Literal["system", "user", "assistant", "tool"], Keep]
    protect_tools: list[str]
    keep_short: int


OF_ROUTERS = ("catch_up",)
"""Options of requests to a router: for the idle time after an answer."""


def _refuse_of_routers(names: Container[str]) -> None:
    """Raise InvalidRequestError for an option that only a router carries out."""
    if named := [name for name in OF_ROUTERS if name in names]:
        raise InvalidRequestError(f"{named[0]} is an option of requests to a router: leave it out")


class AskFields(SelectFields, total=False):
    """What a call of `Pair.ask` may say: the fields of the request option `speculative_prefill`. What a
    router alone does is left out (OF_ROUTERS)."""

    enabled: Literal["auto", "always"] | bool
    min_prompt_tokens: int
    lossy: Literal["allow", "refuse"]


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
        target: str | PathLike[str] | None = None,
        speculator: str | PathLike[str] | None = None,
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
        if decode is not None and decode.method != "none" and engine != "vllm":
            raise SkimError(f"the {engine} target takes no drafts: use engine vllm, or leave decode out")
        if decode is not None and decode.method == "remote" and (target is None or speculator is None):
            raise SkimError("decode method remote needs a speculator and a target in one pair")
        environment = unless_set({"VLLM_CPU_KVCACHE_SPACE": CPU_KV_CACHE_GIB}) if engine == "vllm" else {}
        small = big = None
        if speculator is not None:
            small = EngineSettings(fspath(speculator), engine, speculator_options or {}, environment=environment)
        if target is not None:
            options = {**_decoding(decode), **(target_options or {})}
            big = EngineSettings(fspath(target), engine, options, tensor_parallel, environment)
        prefill = prefill or PrefillOptions()
        _refuse_of_routers(prefill.model_fields_set)
        self._start(small, big, prefill, decode, None if reads_for is None else fspath(reads_for))

    @classmethod
    def from_config(
        cls, config: str | PathLike[str] | DeploymentConfig, *, only: Literal["target", "speculator"] | None = None
    ) -> Self:
        """The pair of a deployment: one engine of each pool, or of the pool `only`.

        config: a deployment file, or what was read from one. Used are its models, their engines with options and
        variables, the options of selection and decoding, and `router.min_prompt_tokens`. A split target starts whole.
        Settings of replicas, machines and HTTP have no meaning here.
        Raises SkimError for a wrong file, and as `Pair` does.
        """
        if not isinstance(config, DeploymentConfig):
            config = load_config(fspath(config))
        drafted = config.target.engine == "vllm" and (only is None or config.decode.method != "remote")
        decode = config.decode if drafted else None
        drafting = _decoding(decode, deadline_s=config.channel.deadline_ms / 1e3)
        fields = {**config.selection.model_dump(), "min_prompt_tokens": config.router.min_prompt_tokens}
        pair = cls.__new__(cls)
        pair._start(
            None if only == "target" else _engine_settings(config.speculator),
            None if only == "speculator" else _engine_settings(config.target, **drafting),
            PrefillOptions(**fields),
            decode,
            config.target.model if is_within_reach(config.target.model) else None,
        )
        return pair

    def _start(
        self,
        speculator: EngineSettings | None,
        target: EngineSettings | None,
        prefill: PrefillOptions,
        decode: DecodeOptions | None,
        reads_for: str | None,
    ) -> None:
        if speculator is None and target is None:
            raise SkimError("a pair needs a target, a speculator or both")
        self._prefill, self._decode = prefill, decode

        async def start() -> AsyncPair:
            pair = AsyncPair(speculator=speculator, target=target, reads_for=reads_for)
            try:
                await pair.ensure_heads()
            except BaseException:
                await pair.close()
                raise
            return pair

        self._thread = EventLoopThread("skim-pair")
        try:
            self._pair = self._thread.run(start())
        except BaseException:
            self._thread.stop()
            raise
        # Also without `close`, no thread and no engine stays when the pair is collected or the process ends.
        weakref.finalize(self, self._thread.drop, self._pair.close)

    def select(self, prompt: PromptInput, **options: Unpack[SelectFields]) -> PairSelection:
        """Score a prompt on the speculator and choose what is kept.

        prompt: text, token ids [M] or chat messages. Of chat messages, the template, the system prompt and the question
        are kept whatever their score, as in serving. options: in place of the pair's defaults.
        Raises InvalidRequestError for a prompt or an option that cannot be used, SkimError without a speculator.
        """
        if options.keys() & {"enabled", "min_prompt_tokens", "lossy"}:
            raise InvalidRequestError(
                "enabled, min_prompt_tokens and lossy are options of ask: select compresses any prompt"
            )
        return self._thread.run(self._select(prompt, self._resolved(options)))

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
        kept = self._for_this_target(selection) if isinstance(selection, PairSelection) else selection
        if not isinstance(kept, KeptPrompt):
            raise InvalidRequestError("generate takes a selection of `select` or a KeptPrompt")
        fields = {"max_tokens": max_tokens, "temperature": temperature, **(sampling or {})}
        return self._thread.run(self._answer(kept, fields))

    def ask(
        self,
        prompt: PromptInput,
        *,
        max_tokens: int = MAX_TOKENS,
        temperature: float = 0.0,
        sampling: Mapping[str, Any] | None = None,
        **options: Unpack[AskFields],
    ) -> PairAnswer:
        """Select and generate, by serving's own dispatcher: short prompts and those that nothing may be dropped of run
        dense.

        prompt, options: as in `select`; `enabled` and `min_prompt_tokens` decide whether the prompt is compressed. Here
        `auto` is `always`: no time decides. max_tokens, temperature, sampling: as in `generate`.
        Raises as `select` and `generate`; unlike serving, also where the selection fails. With `lossy="refuse"`,
        SkimError for a prompt that would lose tokens.
        """
        fields = {"max_tokens": max_tokens, "temperature": temperature, **(sampling or {})}
        return self._thread.run(self._ask(prompt, self._resolved(options), fields))

    def _resolved(self, options: Mapping[str, Any]) -> PrefillOptions:
        """The pair's defaults, overridden by `options`."""
        _refuse_of_routers(options)
        return PREFILL.resolve(self._prefill, None, dict(options))

    def _for_this_target(self, selection: PairSelection) -> KeptPrompt:
        """The kept prompt of a selection. Raises InvalidRequestError if its ids are of another tokenizer."""
        if selection.tokenizer not in (None, self._pair.target.info.fingerprint):
            raise InvalidRequestError(
                "the selection has token ids of another tokenizer than the target's: select for this target (--target "
                "of `skim select`, reads_for of `skim.Pair`)"
            )
        return selection.kept

    @cached_property
    def _dispatcher(self) -> "Dispatcher":
        from cluster.in_process.pools import InProcessPools, Unmetered
        from router.dispatch.dispatcher import Dispatcher

        pools = InProcessPools(self._pair, drafts=self._decode is not None)
        settings = RouterConfig(guard=False, affinity=False, migration=False, select_timeout_s=FOREVER_S)
        return Dispatcher(pools, self._prefill, SpeculationOptions(), settings, Unmetered())

    async def _ask(self, given: PromptInput, options: PrefillOptions, sampling: Mapping[str, Any]) -> PairAnswer:
        from cluster.in_process.pools import SelectionFailedError
        from router.dispatch.request import Prompt, Request
        from router.dispatch.state import CallState

        prompt = render(given, self._pair.tokenizer, options)
        options = options.model_copy(update={"enabled": ALWAYS if options.enabled else False})
        call = CallState(Request(options, self._decode or DecodeOptions(), decode_is_explicit=True))
        logprobs = sampling.get("prompt_logprobs") is not None
        asked = Prompt(prompt, {**sampling, "output_kind": FINAL_ONLY}, sampling["max_tokens"] or 0, logprobs)
        try:
            async with aclosing(self._dispatcher.run(self._pair.name("ask"), asked, call)) as outputs:
                [output] = [output async for output in outputs]
        except SelectionFailedError as failed:
            raise failed.error from None
        [outcome] = call.prompts
        kept = outcome.selection.kept if outcome.selection else KeptPrompt.dense(prompt.token_ids)
        return PairAnswer(output.completions, kept, outcome.reason, output.timings, output.prompt_logprobs)

    async def _select(self, given: PromptInput, options: PrefillOptions) -> PairSelection:
        prompt = render(given, self._pair.tokenizer, options)
        request = SelectRequest(
            self._pair.name("select"),
            prompt.token_ids,
            options.selection,
            prompt.layout(options),
            return_importance=True,
            decode=self._decode,
        )
        found, tokenizer = await self._pair.select(request), self._pair.speculator.info.fingerprint
        scores, timings = found.importance, found.timings
        return PairSelection(
            found.kept, found.coverage, scores, options.selection, timings, tokenizer, found.reused_tokens
        )

    async def _answer(self, kept: KeptPrompt, sampling: Mapping[str, Any]) -> PairAnswer:
        sampling = {**sampling, "output_kind": FINAL_ONLY}
        try:
            async with aclosing(self._pair.generate(kept, sampling, decode=self._decode)) as outputs:
                [output] = [output async for output in outputs]
        except BaseException:
            await self._pair.end_session(kept.session)
            raise
        return PairAnswer(output.completions, kept, None, output.timings, output.prompt_logprobs)

    def close(self) -> None:
        """Stop the engines; idempotent. Raises SkimError in a process that was forked from the pair's."""
        if not self._thread.stopped:
            self._thread.run(self._pair.close())
            self._thread.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _decoding(decode: DecodeOptions | None, **channel: float) -> dict[str, Any]:
    """The target engine's options for this way of decoding. channel: arguments of its DraftClient."""
    if decode is None or decode.method == "none":
        return {}
    return {"decode": decode.model_dump()} | ({"draft_channel": channel} if decode.method == "remote" else {})


def _engine_settings(pool: PoolConfig, **options: Any) -> EngineSettings:
    """One replica's engine. options: further ones."""
    options = {**pool.options_of_engine, **options}
    return EngineSettings(pool.model, pool.engine, options, pool.tensor_parallel, pool.environment)
