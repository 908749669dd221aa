"""The router's view of the pools: two calls, over Ray Serve handles.

With a split target, generating has two legs: a prefill replica reads the prompt, and a decode replica takes its KV
blocks from there. Whatever happens to the first leg, the second answers: it reads what it does not get.

Serve picks the replica (fewest ongoing requests of two choices). A call that is cancelled here is cancelled there. A
replica that dies before it answered is replaced by another one; after the first output the failure is the caller's.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from contextvars import Context
from dataclasses import replace
from typing import Protocol

import grpc
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from kv_transfer.codec import decode, encode
from kv_transfer.errors import EngineUnavailableError, InvalidRequestError, SkimError
from kv_transfer.messages import (
    ACCEPTED,
    GenerateOutput,
    GenerateRequest,
    ModelInfo,
    Selection,
    SelectRequest,
    SessionHandle,
)

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
END_TIMEOUT_S = 10.0
WAKE_AFTER_S = 1.0
"""A selection that takes so long may be waiting for an empty pool to start."""

# Messages go from replica to replica over Serve's gRPC, not through Ray's tasks and object references: bytes that are
# read once gain nothing from these. A replica that is gone is a RayActorError all the same; other failures are gRPC's.
_DIRECT = {"_by_reference": False}

# The first token is sampled where the answer is decoded; a request must make one to have prefilled.
_PREFILL_SAMPLING = {"max_tokens": 1, "temperature": 0.0, "detokenize": False}


class Pools(Protocol):
    """What the engine client needs of the pools; tests give it engines of their own process."""

    speculator: ModelInfo
    target: ModelInfo

    async def select(self, request: SelectRequest) -> Selection:
        """Raises SkimError; cancelling the task aborts the work in the pool."""
        ...

    def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        """Raises SkimError; closing the generator aborts the work in the pool."""
        ...

    async def end_session(self, session: SessionHandle) -> None:
        """Have the speculator let go of a session that no target will ask; best effort, never raises."""
        ...


class ServePools:
    """The pools behind Serve handles. admission_timeout_s: how long a request may wait for a target replica.

    prefill: the first half of a split target; `target` is then the decoding half.
    """

    def __init__(
        self,
        speculator: DeploymentHandle,
        target: DeploymentHandle,
        admission_timeout_s: float,
        prefill: DeploymentHandle | None = None,
    ) -> None:
        self._speculator = speculator.options(stream=True, **_DIRECT)
        self._target = target.options(stream=True, **_DIRECT)
        self._prefill = prefill.options(stream=True, **_DIRECT) if prefill is not None else None
        self._admission_timeout_s = admission_timeout_s
        self._unary = (speculator, target)  # for calls that answer once
        self._halves = [target] if prefill is None else [prefill, target]
        self._waking: asyncio.Task[object] | None = None
        self.speculator: ModelInfo
        self.target: ModelInfo

    async def connect(self) -> None:
        """Wait until an engine answers in each pool, and learn what it runs.

        Raises EngineUnavailableError if a replica dies meanwhile.
        """
        try:
            replies = await asyncio.gather(*(handle.info.remote() for handle in self._unary))
        except (RayError, RayServeException, grpc.RpcError) as error:
            raise EngineUnavailableError("a replica died while the router connected to its pool") from error
        self.speculator, self.target = (decode(reply, ModelInfo) for reply in replies)

    async def select(self, request: SelectRequest) -> Selection:
        response = self._speculator.select.remote(encode(request))
        alarm = asyncio.get_running_loop().call_later(WAKE_AFTER_S, self._wake_target)
        try:
            reply = await anext(response, b"")
        except asyncio.CancelledError:
            response.cancel()
            raise
        except (RayError, RayServeException, grpc.RpcError) as error:
            raise EngineUnavailableError("the speculator pool did not answer; see its replica's log") from error
        finally:
            alarm.cancel()
        return decode(reply, Selection)

    def _wake_target(self) -> None:
        """Have an empty target pool start now, not after the selection: a call that waits is what Serve starts it for.

        One at a time, so that it does not count as load; for all who wait, so in a context of its own: Serve cancels
        the calls that it knows to belong to a cancelled request.
        """

        async def ask() -> None:
            await asyncio.gather(*(handle.info.remote() for handle in self._halves), return_exceptions=True)

        if self._waking is None or self._waking.done():
            self._waking = asyncio.create_task(ask(), context=Context())

    async def end_session(self, session: SessionHandle) -> None:
        # A handle cannot name a replica; the others do not know the session.
        try:
            response = self._unary[0].broadcast("end_session", session.id)
            await response.results_async(timeout_s=END_TIMEOUT_S, return_exceptions=True)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.info("session %s is left to the speculator's eviction: %s", session.id, type(error).__name__)

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        first: GenerateOutput | None = None
        # vLLM makes prompt log probabilities where it reads the prompt.
        if self._prefill is not None and request.sampling.get("prompt_logprobs") is None:
            first = await self._prefilled(self._prefill, request)
        if first is not None:
            request = replace(request, kv_blocks=first.kv_blocks)
        async with aclosing(self._answer(self._target, request)) as outputs:
            async for output in outputs:
                yield output if first is None else _with_prefill(output, first)
                first = None

    async def _prefilled(self, handle: DeploymentHandle, request: GenerateRequest) -> GenerateOutput | None:
        """What the prefill leg told; None if it failed, and the decoding half reads the prompt itself."""
        leg = replace(request, sampling=_PREFILL_SAMPLING, prefill_only=True)
        try:
            async with aclosing(self._answer(handle, leg)) as outputs:
                told = [output async for output in outputs]
        except InvalidRequestError:
            raise
        except SkimError as error:
            logger.warning("request %s is prefilled by its decoding replica: %s", request.request_id, error)
            return None
        return replace(told[-1], timings=told[0].timings)

    async def _answer(self, handle: DeploymentHandle, request: GenerateRequest) -> AsyncGenerator[GenerateOutput, None]:
        payload = encode(request)
        for attempt in range(1, MAX_ATTEMPTS + 1):
            started = False
            try:
                async with aclosing(self._stream(handle, payload)) as outputs:
                    async for output in outputs:
                        started = True
                        yield output
                return
            except RayActorError as error:
                if started:
                    raise EngineUnavailableError("the target replica of this request died during its answer") from error
                logger.warning(
                    "request %s: target replica died, attempt %d of %d", request.request_id, attempt, MAX_ATTEMPTS
                )
        raise EngineUnavailableError("no target replica could take this request; try again in a moment")

    async def _stream(self, handle: DeploymentHandle, payload: bytes) -> AsyncGenerator[GenerateOutput, None]:
        response = handle.generate.remote(payload)
        try:
            await self._admitted(response)
            async for reply in response:
                yield decode(reply, GenerateOutput)
        except RayActorError:
            raise
        except (RayError, RayServeException, grpc.RpcError) as error:
            raise EngineUnavailableError("the target pool failed on this request; see its replica's log") from error
        finally:
            response.cancel()

    async def _admitted(self, response: DeploymentResponseGenerator) -> None:
        """Wait for the replica's sign that it has the request: a pool without replicas must not hold it forever."""
        try:
            async with asyncio.timeout(self._admission_timeout_s):
                first = await anext(response, None)
        except TimeoutError:
            waited = f"after {self._admission_timeout_s:g} s; one may be starting"
            raise EngineUnavailableError(
                f"the target pool has no free replica {waited}: try again in a moment"
            ) from None
        except (BackPressureError, DeploymentUnavailableError):
            raise EngineUnavailableError("the target pool has no free replica; try again in a moment") from None
        if first != ACCEPTED:
            raise EngineUnavailableError("the target replica answered out of turn; the pools run different versions")


def _with_prefill(output: GenerateOutput, prefill: GenerateOutput) -> GenerateOutput:
    """The decoding half's first output, with the engines' time of both legs; the rest of the wait is the way."""
    timings = dict(prefill.timings)
    timings["prefill"] = timings.get("prefill", 0.0) + output.timings.get("prefill", 0.0)
    return replace(output, timings=timings)
