"""The target worker's end of the draft channel: synchronous, and every exchange has a deadline."""

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import grpc

from kv_transfer.codec import decode, encode
from kv_transfer.draft_channel.circuit_breaker import CircuitBreaker
from kv_transfer.draft_channel.protocol import MESSAGE_LIMITS, METHOD, SERVICE, token_metadata
from kv_transfer.draft_channel.tls import CertificateFiles, Tls, client_credentials
from kv_transfer.drafts import DraftReply, DraftRequest, check_answers
from skim_common.errors import SkimError, WireError

SHORTEST = 0.08
"""The shortest deadline, as a share of the longest: 20 ms of the default 250 ms."""

TIMES = 4
"""The deadline is this multiple of the average."""

WEIGHT = 0.2

logger = logging.getLogger(__name__)

# After this many unanswered requests in a row, the client replaces the stream by a new one.
_MAX_UNANSWERED = 3

_OPTIONS = [
    *MESSAGE_LIMITS,
    # A new channel connects at once. A shared subchannel would bring its own back-off, which is longer than ours.
    ("grpc.use_local_subchannel_pool", 1),
    # Replicas are reached directly, even if the environment names a proxy.
    ("grpc.enable_http_proxy", 0),
]


class ExchangeDeadline:
    """TIMES the moving average of the exchanges, from SHORTEST * `longest_s` to `longest_s` seconds.

    Only exchanges that waited for their drafts count. The deadline is `longest_s` until the first one. An exchange that
    missed its deadline counts as long as that deadline. So the deadline grows by 60 % with each miss, until a slower
    drafter is reached again.
    """

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
    """Asks one speculator replica for drafts. One exchange at a time. Uses three threads while it is connected.

    counters: exchanges (answered requests), timeouts, breaker_opened, reconnects (new streams that answered after an
    earlier stream had answered), stale (replies to earlier requests), broken (messages that cannot be encoded or
    decoded, and replies that do not match the request).
    """

    def __init__(
        self,
        address: str,
        *,
        deadline_s: float = 0.25,
        token: str | None = None,
        tls: CertificateFiles | None = None,
        breaker: CircuitBreaker | None = None,
    ) -> None:
        """address: host:port. The first exchange connects. deadline_s: the longest deadline, see ExchangeDeadline."""
        self._address = address
        self._deadline = ExchangeDeadline(deadline_s)
        self._token = token
        self._tls = tls
        self._breaker = breaker or CircuitBreaker()
        self._stream: _Stream | None = None
        self._last_answered: _Stream | None = None
        self._sequence = 0
        names = ("exchanges", "timeouts", "breaker_opened", "reconnects", "stale", "broken")
        self.counters: dict[str, int] = dict.fromkeys(names, 0)

    def exchange(self, request: DraftRequest) -> DraftReply | None:
        """Send `request` and return its reply, checked by `check_answers`; None if no valid reply comes in time.

        The client sets sequence numbers of its own on the wire. The returned reply has the request's number.
        """
        if not self._breaker.allows_call():
            return None
        allowed, began = self._deadline.seconds(), time.monotonic()
        try:
            reply = self._ask(request, began + allowed)
        except TimeoutError:
            self.counters["timeouts"] += 1
            self._deadline.observe(allowed)
            self._count_unanswered()
            self._failed(f"no answer within {allowed:.3g} s")
        except _StreamEndedError as e:
            self._failed(str(e), for_sure=True)
        except SkimError as e:
            self.counters["broken"] += 1
            self._failed(str(e))
        else:
            if reply.drafts:
                self._deadline.observe(time.monotonic() - began)
            self._succeeded()
            return replace(reply, sequence=request.sequence)
        return None

    def close(self) -> None:
        """Close the stream and end its threads; idempotent. A later exchange opens a new stream."""
        if self._stream:
            self._stream.close()
            self._stream = None

    def _ask(self, request: DraftRequest, deadline: float) -> DraftReply:
        self._sequence += 1
        body = encode(replace(request, sequence=self._sequence))
        stream = self._open_stream()
        stream.send(body)
        while True:
            reply = decode(stream.receive(deadline), DraftReply)
            if reply.sequence == self._sequence:
                check_answers(reply, request)
                return reply
            if reply.sequence > self._sequence:
                raise WireError(f"a reply has number {reply.sequence}, the request had {self._sequence}")
            self.counters["stale"] += 1

    def _open_stream(self) -> "_Stream":
        """The open stream; a new one if there is none or it has ended."""
        if self._stream and self._stream.has_ended:
            self.close()
        if not self._stream:
            self._stream = _Stream(self._open_channel(), token_metadata(self._token))
        return self._stream

    def _open_channel(self) -> grpc.Channel:
        if self._tls is None:
            return grpc.insecure_channel(self._address, _OPTIONS)
        server_name = self._tls.server_name
        name = [("grpc.ssl_target_name_override", server_name)] if server_name else []
        return grpc.secure_channel(self._address, client_credentials(self._tls), [*_OPTIONS, *name])

    def _count_unanswered(self) -> None:
        if self._stream:
            self._stream.unanswered += 1
            if self._stream.unanswered >= _MAX_UNANSWERED:
                self.close()

    def _failed(self, reason: str, *, for_sure: bool = False) -> None:
        was_closed = not self._breaker.pause_s
        if self._breaker.failed(for_sure=for_sure):
            self.counters["breaker_opened"] += 1
            # One warning per outage: a failed trial is no news.
            level = logging.WARNING if was_closed else logging.DEBUG
            logger.log(level, "No drafts from %s, next try in %.1f s: %s", self._address, self._breaker.pause_s, reason)

    def _succeeded(self) -> None:
        self.counters["exchanges"] += 1
        if self._breaker.pause_s:
            logger.info("Drafts from %s again", self._address)
        self._breaker.succeeded()
        if self._stream:
            self._stream.unanswered = 0
        if self._stream is not self._last_answered:
            self.counters["reconnects"] += self._last_answered is not None
            self._last_answered = self._stream


def connecting(channel: Mapping[str, Any]) -> Callable[[str], DraftClient]:
    """Makes the client for an address. channel: keyword arguments of DraftClient, `tls` as a mapping.

    Raises SkimError if the files of `tls` are not certificates.
    """
    options = dict(channel)
    if options.get("tls"):
        options["tls"] = CertificateFiles(Tls(**options["tls"]))
    return lambda address: DraftClient(address, **options)


class _StreamEndedError(Exception):
    """The peer ended the stream, refused it or cannot be reached."""


class _Stream:
    """One gRPC call on its own channel. A thread reads the replies, so that `receive` can time out."""

    def __init__(self, channel: grpc.Channel, metadata: list[tuple[str, bytes]]) -> None:
        self.unanswered = 0
        self.has_ended = False
        self._reason = ""
        self._channel = channel
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(f"/{SERVICE}/{METHOD}")(iter(self._requests.get, None), metadata=metadata)
        threading.Thread(target=self._read, name="draft-replies", daemon=True).start()

    def send(self, body: bytes) -> None:
        self._requests.put(body)

    def receive(self, deadline: float) -> bytes:
        """The next reply. Raises TimeoutError at `deadline` (monotonic seconds), _StreamEndedError after the stream."""
        try:
            body = self._replies.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise TimeoutError from None
        if body is None:
            raise _StreamEndedError(self._reason)
        return body

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._channel.close()

    def _read(self) -> None:
        try:
            for body in self._call:
                self._replies.put(body)
            self._reason = "the peer ended the stream"
        except grpc.RpcError as e:
            self._reason = f"{e.code().name}, {e.details()}"
        self.has_ended = True
        self._replies.put(None)
