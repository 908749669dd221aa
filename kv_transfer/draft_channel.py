"""The draft channel: a gRPC stream of DraftRequests and DraftReplies between a target worker and a speculator replica.

`DraftClient` is synchronous, inside the target's step. `DraftServer` is asyncio, in the speculator's process. A stream
whose reply is late is cancelled at both ends, so no reply comes for an earlier request. A call of its own for each
request would take 0.3 ms longer.
"""

import hmac
import logging
import queue
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

from kv_transfer.codec import MAX_MESSAGE_BYTES, decode, encode
from kv_transfer.draft_tls import CertificateFiles
from kv_transfer.drafts import DraftReply, DraftRequest, check_answers
from skim_common.errors import EngineUnavailableError, SkimError

SERVICE, METHOD = "skim.Drafts", "Exchange"

SHORTEST, TIMES, WEIGHT = 0.08, 4, 0.2
"""Of the deadline: the shortest is this share of the longest, 20 ms of the default 250 ms; between them it is so many
times the moving average of the exchanges, in which the newest has this weight."""

MAX_FAILURES = 3

# gRPC carries the value of a "-bin" key as bytes, so a token may contain any character.
_TOKEN_KEY = "skim-token-bin"
_MESSAGE_LIMITS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]
_CLIENT_OPTIONS = [
    *_MESSAGE_LIMITS,
    # A new channel connects at once. A shared subchannel would bring its own back-off, which is longer than ours.
    ("grpc.use_local_subchannel_pool", 1),
    # Replicas are reached directly, even if the environment names a proxy.
    ("grpc.enable_http_proxy", 0),
]

logger = logging.getLogger(__name__)

Handler = Callable[[DraftRequest], Awaitable[DraftReply]]


class ExchangeDeadline:
    """Follows the exchanges that waited for their drafts; `longest_s` until the first one. One that missed its deadline
    counts as long as that, so the deadline grows by 60 % until a slower drafter is reached again."""

    def __init__(self, longest_s: float) -> None:
        self._longest_s = longest_s
        self._average_s: float | None = None

    def seconds(self) -> float:
        """For the next exchange."""
        if self._average_s is None:
            return self._longest_s
        return min(max(TIMES * self._average_s, SHORTEST * self._longest_s), self._longest_s)

    def observe(self, seconds: float) -> None:
        """Record an exchange that took this time, or that missed this deadline."""
        before = self._average_s
        self._average_s = seconds if before is None else before + WEIGHT * (seconds - before)


class DraftClient:
    """Asks one speculator replica for drafts, one exchange at a time.

    It pauses after MAX_FAILURES failed exchanges in a row, and at once if the replica refuses or cannot be reached. The
    exchange after a pause uses a new connection; if it fails, the pause doubles.

    counters: exchanges (answered requests), timeouts, breaker_opened (pauses), broken (messages that are none, and
    replies that do not match the request). failure: why the last exchange that failed had no reply: timeout,
    unreachable, broken, or breaker for a pause.
    """

    def __init__(
        self,
        address: str,
        *,
        deadline_s: float = 0.25,
        token: str | None = None,
        tls: CertificateFiles | None = None,
        pauses_s: tuple[float, float] = (0.1, 5.0),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """address: host:port. The first exchange connects. deadline_s: the longest. pauses_s: first and longest."""
        self._address, self._token, self._tls = address, token, tls
        self._deadline = ExchangeDeadline(deadline_s)
        self._first_pause_s, self._longest_pause_s = pauses_s
        self._clock = clock
        self._failures, self._pause_s, self._paused_until = 0, 0.0, 0.0
        self._channel: grpc.Channel | None = None
        self._replies: Any = None  # the stream's gRPC call
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.failure = ""
        self.counters = dict.fromkeys(("exchanges", "timeouts", "breaker_opened", "broken"), 0)

    def exchange(self, request: DraftRequest) -> DraftReply | None:
        """Send `request` and return its reply, checked by `check_answers`; None if no valid reply comes in time."""
        if self._pause_s and self._clock() < self._paused_until:
            self.failure = "breaker"
            return None
        allowed, began = self._deadline.seconds(), time.monotonic()
        try:
            reply = decode(self._ask(encode(request), allowed), DraftReply)
            check_answers(reply, request)
        except TimeoutError:
            self.counters["timeouts"] += 1
            self._deadline.observe(allowed)
            self._end_stream()
            self._failed("timeout", f"no answer within {allowed:.3g} s")
        except grpc.RpcError as e:
            self._failed("unreachable", f"{e.code().name}, {e.details()}")
        except SkimError as e:
            self.counters["broken"] += 1
            self._failed("broken", str(e))
        else:
            if reply.drafts:
                self._deadline.observe(time.monotonic() - began)
            if self._pause_s:
                logger.info("Drafts from %s again", self._address)
            self._failures, self._pause_s = 0, 0.0
            self.counters["exchanges"] += 1
            return reply
        return None

    def close(self) -> None:
        """Close the connection and end its threads; idempotent. A later exchange opens a new one."""
        self._end_stream()
        if self._channel:
            self._channel.close()
            self._channel = None

    def _ask(self, body: bytes, timeout_s: float) -> bytes:
        """The reply to `body`; empty if the peer has ended the stream."""
        if self._replies is None:
            if self._channel is None:
                plain = grpc.insecure_channel if self._tls is None else self._tls.channel
                self._channel = plain(self._address, _CLIENT_OPTIONS)
            metadata = [] if self._token is None else [(_TOKEN_KEY, self._token.encode())]
            self._requests = queue.SimpleQueue()
            stream = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
            self._replies = stream(iter(self._requests.get, None), metadata=metadata)
            # gRPC has a deadline for a whole stream only, so a thread waits for each reply.
            self._reader = ThreadPoolExecutor(1, "draft-replies")
        self._requests.put(body)
        return self._reader.submit(next, self._replies, b"").result(timeout_s)

    def _end_stream(self) -> None:
        if self._replies is not None:
            self._requests.put(None)
            self._replies.cancel()
            self._reader.shutdown(wait=False)
            self._replies = None

    def _failed(self, failure: str, reason: str) -> None:
        self.failure = failure
        self._failures += 1
        if not (failure == "unreachable" or self._pause_s or self._failures >= MAX_FAILURES):
            return
        self.close()
        self.counters["breaker_opened"] += 1
        # One warning per outage: a failed trial is no news.
        level = logging.DEBUG if self._pause_s else logging.WARNING
        self._pause_s = min(2 * self._pause_s, self._longest_pause_s) or self._first_pause_s
        self._paused_until = self._clock() + self._pause_s
        logger.log(level, "No drafts from %s, next try in %.1f s: %s", self._address, self._pause_s, reason)


def connecting(channel: Mapping[str, Any]) -> Callable[[str], DraftClient]:
    """Makes the client for an address. channel: keyword arguments of DraftClient, `tls` as a mapping. Raises SkimError
    if its files are not certificates."""
    options = dict(channel)
    if options.get("tls"):
        options["tls"] = CertificateFiles(**options["tls"])
    return lambda address: DraftClient(address, **options)


class DraftServer:
    """Calls `handler` for every DraftRequest.

    If it raises, the stream ends with the error's text, and the client pauses. If the client no longer waits, its task
    is cancelled. token: streams without it are refused. port: 0 means any free port.
    """

    def __init__(
        self,
        handler: Handler,
        host: str,
        port: int = 0,
        *,
        token: str | None = None,
        tls: CertificateFiles | None = None,
    ) -> None:
        self._handler, self._token = handler, token
        self._address = f"{host}:{port}"
        self._credentials = tls.server_credentials() if tls else None
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Start to listen and return the port. Raises EngineUnavailableError if the port is in use."""
        # Without SO_REUSEPORT a second server on the port fails here instead of taking half of the clients.
        server = grpc.aio.server(options=[*_MESSAGE_LIMITS, ("grpc.so_reuseport", 0)])
        method = grpc.stream_stream_rpc_method_handler(self._exchange)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: method}),))
        try:
            if self._credentials:
                port = server.add_secure_port(self._address, self._credentials)
            else:
                port = server.add_insecure_port(self._address)
        except RuntimeError:
            raise EngineUnavailableError(
                f"the draft channel cannot listen on {self._address}: choose a free port, or 0 for any"
            ) from None
        await server.start()
        self._server = server
        return int(port)

    async def stop(self) -> None:
        """End all streams and free the port; idempotent."""
        if self._server:
            await self._server.stop(grace=None)
            self._server = None

    async def _exchange(
        self, bodies: AsyncIterator[bytes], context: grpc.aio.ServicerContext[bytes, bytes]
    ) -> AsyncIterator[bytes]:
        if self._token is not None:
            shown = dict(context.invocation_metadata() or ()).get(_TOKEN_KEY, b"")
            if not (isinstance(shown, bytes) and hmac.compare_digest(shown, self._token.encode())):
                await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong: give both pools the same one")
        async for body in bodies:
            try:
                reply = encode(await self._handler(decode(body, DraftRequest)))
            except SkimError as e:
                await context.abort(grpc.StatusCode.ABORTED, str(e))
            yield reply
