"""A speculator and a target engine in this process, and both as the pools of a router's dispatcher."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from kv_transfer.drafts import DraftRequest
from kv_transfer.messages import (
    GenerateOutput,
    GenerateRequest,
    KeptPrompt,
    Selection,
    SelectRequest,
    SessionHandle,
)
from kv_transfer.options import DecodeOptions
from router.pools.interface import Admitted, unwatched
from skim_common.environment import with_environment
from skim_common.errors import InvalidRequestError, SkimError
from skim_common.models.info import ModelInfo, inspect_model, load_tokenizer

if TYPE_CHECKING:
    from kv_transfer.draft_channel import DraftServer
    from speculator_service.drafting import DraftService
    from speculator_service.engine import SpeculatorEngine
    from speculator_service.service import SpeculatorService
    from target_service.engine import TargetEngine

HOST = "127.0.0.1"
"""Of the draft channel."""


@dataclass(frozen=True)
class EngineSettings:
    """How one engine starts.

    model: folder or hub name. options: keyword arguments of the engine. environment: variables of its processes.
    create: is called in place of the service's `create_engine`, with the same arguments.
    """

    model: str
    engine: str = "vllm"
    options: Mapping[str, Any] = field(default_factory=dict)
    tensor_parallel: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)
    create: Callable[..., Any] | None = None

    def start(self, create: Callable[..., Any]) -> Any:
        """The engine. create: the service's `create_engine`."""
        with with_environment(self.environment):
            return (self.create or create)(
                self.engine, self.model, tensor_parallel=self.tensor_parallel, options=self.options
            )


class PairEngines:
    """One speculator engine and one target engine, or one of them. Make, use and close them in one event loop.

    Two of these may share a speculator: a selection with a drafting session serves any target that drafts remotely.
    """

    def __init__(
        self,
        *,
        speculator: EngineSettings | None = None,
        target: EngineSettings | None = None,
        reads_for: str | None = None,
    ) -> None:
        """Start the engines, at least one; the event loop waits meanwhile.

        reads_for: without a target, the model whose tokens prompts and selections are in; by default the speculator.
        Raises ModelError for models that cannot be used or do not fit, SkimError for an engine that does not start.
        """
        from speculator_service.engine import create_engine as create_speculator
        from speculator_service.translation import translated, translation_for
        from target_service.engine import create_engine as create_target

        names = target.model if target else None, reads_for, speculator.model if speculator else None
        self._model = next(filter(None, names))
        translation = None
        if speculator is not None and self._model != speculator.model:
            inspect_model(self._model, engine="tokenizer")
            translation = translation_for(speculator.model, self._model)
        self._speculator: SpeculatorEngine | None = None
        self._target: TargetEngine | None = None
        self._server: DraftServer | None = None
        self._address, self._starting = "", asyncio.Lock()
        self._numbers = count()
        if speculator is not None:
            self._own = speculator.start(create_speculator), speculator.model, translation
            self._speculator = translated(self._own[0], translation)
        try:
            self._target = target.start(create_target) if target is not None else None
        except BaseException:
            if self._speculator is not None:
                self._speculator.close()
            raise

    @property
    def speculator(self) -> "SpeculatorEngine":
        """Raises SkimError if there is none."""
        if self._speculator is None:
            raise SkimError("this pair was opened without a speculator: it cannot select")
        return self._speculator

    @property
    def target(self) -> "TargetEngine":
        """Raises SkimError if there is none."""
        if self._target is None:
            raise SkimError("this pair was opened without a target: it cannot generate")
        return self._target

    @cached_property
    def tokenizer(self) -> Any:
        """The transformers tokenizer of prompts and selections: the target's, if there is one."""
        return load_tokenizer(self._model)

    @cached_property
    def drafts(self) -> "DraftService":
        """The drafting side of the speculator. Raises SkimError if there is none."""
        from speculator_service.drafting import DraftService

        return DraftService(self.speculator)

    @cached_property
    def _service(self) -> "SpeculatorService":
        from speculator_service.service import SpeculatorService

        return SpeculatorService(self.speculator, drafts=self.drafts)

    async def ensure_heads(self) -> None:
        """As `speculator_service.start.find_heads.ensure_heads`, if there is a speculator."""
        from speculator_service.start.find_heads import ensure_heads
        from speculator_service.translation import translated

        if self._speculator is not None:
            engine, model, translation = self._own
            await ensure_heads(engine, model)
            self._speculator = translated(engine, translation)

    async def draft_address(self) -> str:
        """host:port of the draft channel, which the first call starts."""
        from kv_transfer.draft_channel import DraftServer

        drafts = self.drafts
        async with self._starting:
            if self._server is None:
                self._server = DraftServer(drafts.handle, HOST)
                self._address = f"{HOST}:{await self._server.start()}"
        return self._address

    async def select(self, request: SelectRequest) -> Selection:
        """Score the prompt [M] and choose what is kept. With decode method remote, that leaves a drafting session.

        Raises InvalidRequestError for a prompt that the speculator cannot take, EngineUnavailableError if it is dead.
        """
        if request.decode is None or request.decode.method != "remote":
            request = replace(request, decode=None)
        elif self.speculator.supports_drafts:
            self._service.address = await self.draft_address()
        return await self._service.select(request)

    def generate(
        self,
        prompt: KeptPrompt,
        sampling: Mapping[str, Any],
        *,
        decode: DecodeOptions | None = None,
        cache_salt: str | None = None,
    ) -> AsyncGenerator[GenerateOutput, None]:
        """As `TargetEngine.generate`. decode: None speculates as the target's own options say."""
        decode, limit = decode or DecodeOptions(), self.target.info.max_position - (sampling.get("max_tokens") or 16)
        read = prompt.in_reading_order(limit)
        request = GenerateRequest(self.name("generate"), read, sampling, cache_salt=cache_salt, decode=decode)
        return self.target.generate(request)

    async def end_session(self, session: SessionHandle | None) -> None:
        """Free a drafting session, if there is one. A target does so when an answer ends."""
        if session is not None and self._speculator is not None:
            await self.drafts.handle(DraftRequest(closed=[session.id]))

    def name(self, what: str) -> str:
        """A request id or session id that is new here."""
        return f"{what}-{next(self._numbers)}"

    async def close(self) -> None:
        """Stop both engines and the draft channel; idempotent. The target is first: it asks the channel for drafts."""
        try:
            if self._target is not None:
                self._target.close()
            if self._server is not None:
                await self._server.stop()
                await self.drafts.close()
        finally:
            if self._speculator is not None:
                self._speculator.close()


class SelectionFailedError(Exception):
    """A selection failed. It is no SkimError: the dispatcher would run the prompt dense. error: why."""

    def __init__(self, error: SkimError) -> None:
        super().__init__(str(error))
        self.error = error


class InProcessPools:
    """Implements `router.pools.interface.Pools`. drafts: whether a selection leaves a drafting session."""

    untrusted = False

    def __init__(self, engines: PairEngines, *, drafts: bool) -> None:
        """Raises SkimError without a target."""
        self._engines, self._drafts = engines, drafts
        self.target: ModelInfo = engines.target.info
        self.speculator: ModelInfo | None = engines._speculator.info if engines._speculator else None
        self.end_session = engines.end_session

    def replicas(self, pool: str) -> float:
        """See `Pools`."""
        return 1.0

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched, answers: bool = True) -> Selection:
        """Raises InvalidRequestError, and SelectionFailedError for every other SkimError."""
        admitted()
        try:
            return await self._engines.select(request if self._drafts else replace(request, decode=None))
        except InvalidRequestError:
            raise
        except SkimError as error:
            raise SelectionFailedError(error) from None

    def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        """See `Pools`."""
        admitted()
        return self._engines.target.generate(request)


class Unmetered:
    """A meter that records nothing."""

    def record(self, name: str, value: float, **tags: str) -> None: ...
