"""The router's calls to the pools, over Ray Serve handles.

With a split target, generation has two legs: a prefill replica prefills the prompt, and a decode replica fetches the KV
blocks from it. If the first leg fails, the decode replica prefills the prompt itself.

Serve chooses the replica (`router.pools.affinity_router`). Cancelling a call here cancels it in the replica.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import grpc
from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError, RayServeException
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator

from actors.ray_hooks.serve import replies_of_all, streaming_bytes
from kv_transfer.codec import decode, encode
from kv_transfer.messages import (
    ACCEPTED,
    READ_ONLY,
    GenerateOutput,
    GenerateRequest,
    Selection,
    SelectRequest,
    SessionHandle,
)
from kv_transfer.reply_pieces import PieceJoiner
from router.admission.intake_lock import IntakeLock
from router.pools.affinity_router import by_prefix, where
from router.pools.availability import ColdStart, PoolDownError, PoolStates
from router.pools.interface import Admitted, Problem, unwatched
from router.pools.migration import AnswerRecord, ReplicaLostError, in_larger_messages, migrate
from skim_common.errors import (
    DeadlineError,
    EngineUnavailableError,
    HandoverError,
    InvalidRequestError,
    SkimError,
    WireVersionError,
)
from skim_common.models.info import ModelInfo, check_pair

logger = logging.getLogger(__name__)

END_TIMEOUT_S = 10.0
MEET_PAUSE_S = 1.0
WAKE_AFTER_S = 1.0
"""After this time a selection may be waiting for an empty speculator pool to start."""

MESSAGE_MS = 0.4
"""About the CPU time that one message of an answer takes in a router."""
TOKEN_MS = 10.0
"""About the time between two tokens of an answer."""
MAX_TOKENS = 10
"""Of a message of an answer that is streamed."""


class ServePools:
    """The pools behind Serve handles.

    admission_timeout_s: how long a request may wait for a target replica. target: None where nothing is answered;
    prompts are then in the speculator's tokens. prefill: the prefill half of a split target; `target` is then the
    decode half. problem: why the speculator pool is not used yet.
    """

    def __init__(
        self,
        speculator: DeploymentHandle,
        target: DeploymentHandle | None,
        admission_timeout_s: float,
        states: PoolStates,
        prefill: DeploymentHandle | None = None,
        intake: IntakeLock | None = None,
    ) -> None:
        self._admission_timeout_s, self._states = admission_timeout_s, states
        handles = {"speculator": speculator, "target": target, "prefill": prefill}
        self._handles = {pool: handle for pool, handle in handles.items() if handle is not None}
        self._streaming = {pool: streaming_bytes(handle) for pool, handle in self._handles.items()}
        self._cold_start = ColdStart(self._handles, states.answered)
        self._meeting: asyncio.Task[None] | None = None
        self._running, self._intake = 0, intake or IntakeLock()  # _running: calls of `generate`
        self.speculator: ModelInfo | None = None
        self.target: ModelInfo
        self.problem = Problem()

    async def connect(self) -> None:
        """Wait until an engine answers in each pool, and store its ModelInfo. A speculator that is down joins later. So
        does a prefill half: until it answers, the decode half does its work.

        Raises EngineUnavailableError if a replica dies meanwhile, and SkimError if the models do not fit together.
        """
        if "target" not in self._handles:
            self.target = self.speculator = await self._info("speculator")
            return
        self.target, speculator = await asyncio.gather(self._info("target"), self._speculator_info())
        if speculator is not None:
            check_pair(speculator, self.target)
            self.speculator = speculator
        elif self._meeting is None:
            logger.warning("the router starts without the speculator, whose pool is down")
            self.problem = Problem("waiting for a replica of the speculator pool; `skim status` says what keeps it")
            self._meeting = asyncio.create_task(self._meet_later())
        if "prefill" in self._handles:
            # After a slow start it would count as down until Serve's next report.
            self._cold_start.wake_up("prefill")

    async def _info(self, pool: str) -> ModelInfo:
        try:
            info = decode(await self._handles[pool].info.remote(), ModelInfo)
        except (RayError, RayServeException, grpc.RpcError) as error:
            raise EngineUnavailableError("a replica died while the router connected to its pool") from error
        # Otherwise a slow start would count as down until Serve's next report, and the first prompts would run dense.
        self._states.answered(pool)
        return info

    async def _speculator_info(self) -> ModelInfo | None:
        """None if the pool is down."""
        try:
            async with self._states.while_up("speculator"):
                return await self._info("speculator")
        except PoolDownError:
            return None

    async def _meet_later(self) -> None:
        """Until the speculator pool answers, or its model does not fit."""
        while True:
            try:
                speculator = await self._info("speculator")
                check_pair(speculator, self.target)
                self.speculator, self.problem = speculator, Problem()
                return
            except EngineUnavailableError:
                await asyncio.sleep(MEET_PAUSE_S)
            except SkimError as error:
                logger.error("the speculator pool is not used: %s", error)
                self.problem = Problem(str(error), failed=True)
                return

    @property
    def untrusted(self) -> bool:
        return bool(self._states.failed_probes)

    def ask_all(self, method: str, *args: Any, timeout_s: float) -> list[Awaitable[list[Any]]]:
        """For each pool, as `replies_of_all`."""
        return [replies_of_all(handle, method, *args, timeout_s=timeout_s) for handle in self._handles.values()]

    def replicas(self, pool: str) -> float:
        """As Pools.replicas. A prefill half counts, because it reads the prompts."""
        return self._states.per_router("prefill" if pool == "target" and "prefill" in self._handles else pool)

    async def select(self, request: SelectRequest, admitted: Admitted = unwatched, answers: bool = True) -> Selection:
        """As Pools.select. No answer could follow a selection for a target that is down, so there is none."""
        for pool in ("target", "speculator") if answers else ("speculator",):
            self._check(pool)
        if self.problem.text is not None:
            raise PoolDownError("the speculator pool is not connected yet")
        response = self._call("speculator", "select", request)
        # Serve then starts an empty target pool now, not after the selection.
        others = [pool for pool in self._handles if pool != "speculator"]
        wake_up = partial(self._cold_start.wake_up, *others, admitted=admitted)
        alarm = asyncio.get_running_loop().call_later(WAKE_AFTER_S, wake_up) if answers else None
        try:
            async with self._states.while_up("speculator"):
                reply = await anext(response, b"")
        except (asyncio.CancelledError, PoolDownError):
            response.cancel()
            raise
        except (RayError, RayServeException, grpc.RpcError) as error:
            raise EngineUnavailableError("the speculator pool did not answer; see its replica's log") from error
        finally:
            if alarm is not None:
                alarm.cancel()
            self._cold_start.forget(admitted)
        selection = decode(reply, Selection)
        self._states.answered("speculator")
        return selection

    def _call(self, pool: str, method: str, request: SelectRequest | GenerateRequest) -> DeploymentResponseGenerator:
        """The stream of one replica: one that the request prefers."""
        wish = by_prefix(request.envelope.affinity, request.request_id)
        return self._streaming[pool].options(method_name=method, session_id=wish).remote(encode(request))

    async def end_session(self, session: SessionHandle) -> None:
        replica = self._handles["speculator"].options(method_name="end_session", session_id=where(session.id))
        try:
            async with asyncio.timeout(END_TIMEOUT_S):
                await replica.remote(session.id)
        except (RayError, RayServeException, TimeoutError) as error:
            logger.info("session %s is left to the speculator's eviction: %s", session.id, type(error).__name__)

    async def generate(
        self, request: GenerateRequest, admitted: Admitted = unwatched
    ) -> AsyncGenerator[GenerateOutput, None]:
        self._check("target")
        # vLLM computes prompt log probabilities during prefill, so such a request is not split.
        scores = request.scored or request.sampling.get("prompt_logprobs") is not None
        splits = "prefill" in self._handles and not scores
        first = await self._prefilled(request, admitted) if splits else None
        if first is not None:
            request = replace(request, kv_blocks=first.kv_blocks)
        async with aclosing(self._outputs("target", request, admitted)) as outputs:
            async for output in outputs:
                yield output if first is None else _with_prefill(output, first)
                first = None

    async def _prefilled(self, request: GenerateRequest, admitted: Admitted) -> GenerateOutput | None:
        """The output of the prefill leg. None if it failed: the decode half then prefills the prompt itself."""
        # The decode leg samples the first token of the answer itself.
        leg = replace(request, sampling=dict(READ_ONLY), prefill_only=True, answered=0)
        try:
            self._check("prefill")
            attempt = partial(self._outputs, "prefill", admitted=admitted)
            received = [output async for output in migrate(AnswerRecord(leg), attempt, enabled=False)]
        except (InvalidRequestError, DeadlineError):
            raise
        except SkimError as error:
            logger.warning("request %s is prefilled by its decoding replica: %s", request.request_id, error)
            return None
        return replace(received[-1], timings=received[0].timings)

    def _check(self, pool: str) -> None:
        """Raise PoolDownError if the pool is down; one call then waits for it in the background."""
        try:
            self._states.check(pool)
        except PoolDownError:
            self._cold_start.wake_up(pool)
            raise

    async def _outputs(
        self, pool: str, request: GenerateRequest, admitted: Admitted
    ) -> AsyncGenerator[GenerateOutput, None]:
        """The outputs of one replica of the pool."""
        # All answers, also those that come next, then send one message in MESSAGE_MS: one event loop can take it.
        crowd = self._running + self._intake.waiting
        tokens = min(int(MESSAGE_MS * crowd / TOKEN_MS), MAX_TOKENS)
        request = replace(request, sampling=in_larger_messages(request.sampling, tokens))
        response = self._call(pool, "generate", request)
        self._running += 1
        accepted = False
        try:
            await self._admitted(response)
            accepted = True
            # Serve's next report may be seconds away, and requests would be refused until then.
            self._states.answered(pool)
            admitted()
            joiner = PieceJoiner()
            async for reply in response:
                if (output := joiner.add(decode(reply, GenerateOutput))) is not None:
                    yield output
        except HandoverError as error:
            raise ReplicaLostError("drained", accepted=accepted) from error
        except WireVersionError as error:
            raise ReplicaLostError("refused", accepted=False) from error  # it cannot read the request
        except RayActorError as error:
            raise ReplicaLostError("died", accepted=accepted) from error
        except (RayError, RayServeException, grpc.RpcError) as error:
            if isinstance(error, grpc.aio.AioRpcError) and error.code() == grpc.StatusCode.CANCELLED:
                # Not by this router, which would get a CancelledError: a replica that stops cancels its streams.
                raise ReplicaLostError("drained", accepted=accepted) from error
            raise EngineUnavailableError("the target pool failed on this request; see its replica's log") from error
        finally:
            self._running -= 1
            response.cancel()

    async def _admitted(self, response: DeploymentResponseGenerator) -> None:
        """Wait until a replica confirms that it has the request. A pool without replicas must not hold it forever."""
        none_free = "the target pool has no free replica"
        try:
            async with asyncio.timeout(self._admission_timeout_s):
                first = await anext(response, None)
        except TimeoutError:
            waited = f"after {self._admission_timeout_s:g} s; one may be starting"
            raise EngineUnavailableError(f"{none_free} {waited}: try again in a moment") from None
        except (BackPressureError, DeploymentUnavailableError):
            raise EngineUnavailableError(f"{none_free}; try again in a moment") from None
        if first != ACCEPTED:
            message = "the target replica sent an unexpected first message; router and target run different versions"
            raise EngineUnavailableError(message)


def _with_prefill(output: GenerateOutput, prefill: GenerateOutput) -> GenerateOutput:
    """The decode half's first output with the engine times of both legs, and the cached tokens of the prefill half: the
    decode half got the others from it."""
    timings = dict(prefill.timings)
    timings["prefill"] = timings.get("prefill", 0.0) + output.timings.get("prefill", 0.0)
    return replace(output, timings=timings, cached_tokens=prefill.cached_tokens, created_tokens=prefill.created_tokens)
