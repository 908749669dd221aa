"""The draft channel: one bidirectional gRPC stream from a target worker to a speculator replica.

Each message is encoded by `kv_transfer.codec`. The target sends DraftRequests, and the speculator answers with
DraftReplies in the same order. After an error the client opens a new stream. The client is `channel_client.DraftClient`
(synchronous, inside the target's step), the server is `channel_server.DraftServer` (asyncio, in the speculator's
process). This file holds what both use.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import grpc

from kv_transfer.codec import MAX_MESSAGE_BYTES
from kv_transfer.errors import SkimError

SERVICE = "skim.Drafts"
METHOD = "Exchange"

MESSAGE_LIMITS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]

# gRPC carries the value of a "-bin" key as bytes, so a token may contain any character.
_TOKEN_KEY = "skim-token-bin"


@dataclass(frozen=True, slots=True)
class Tls:
    """Mutual TLS: each end shows `cert` and checks the other end's certificate against `ca`. All are PEM files.

    server_name: the name in the servers' certificate; needed if clients use an address that the certificate lacks.
    """

    cert: str
    key: str
    ca: str
    server_name: str | None = None


def token_metadata(token: str | None) -> list[tuple[str, bytes]]:
    """The gRPC metadata that a client sends when it opens a stream."""
    return [] if token is None else [(_TOKEN_KEY, token.encode())]


def token_is_right(token: str | None, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether `metadata` holds `token`; compared in constant time."""
    if token is None:
        return True
    shown = dict(metadata).get(_TOKEN_KEY, b"")
    return isinstance(shown, bytes) and hmac.compare_digest(shown, token.encode())


def client_credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Raises SkimError if a file cannot be read."""
    return grpc.ssl_channel_credentials(_read(tls.ca), _read(tls.key), _read(tls.cert))


def server_credentials(tls: Tls) -> grpc.ServerCredentials:
    """Raises SkimError if a file cannot be read."""
    pair = (_read(tls.key), _read(tls.cert))
    return grpc.ssl_server_credentials([pair], root_certificates=_read(tls.ca), require_client_auth=True)


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise SkimError(f"the draft channel cannot read {path} ({e.strerror}): check its tls settings") from None
