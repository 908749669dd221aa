"""The draft channel: one bidirectional gRPC stream from a target worker to a speculator replica.

Each message is one body of `kv_transfer.codec`: DraftRequest there, DraftReply back, in order. A stream that ends with
an error is not mended; the client opens a new one. The two ends are `channel_client.DraftClient` (synchronous, in the
target's step) and `channel_server.DraftServer` (asyncio, in the speculator's process); here is what they share.
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

# "-bin": gRPC carries such a value as bytes, so a token may hold any character.
_TOKEN_KEY = "skim-token-bin"


@dataclass(frozen=True, slots=True)
class Tls:
    """Mutual TLS: both ends show `cert` and check the other's against `ca`. All are paths of PEM files.

    server_name: the name in the servers' certificate, where clients reach them by an address that it does not hold.
    """

    cert: str
    key: str
    ca: str
    server_name: str | None = None


def token_metadata(token: str | None) -> list[tuple[str, bytes]]:
    """What a client sends along when it opens a stream."""
    return [] if token is None else [(_TOKEN_KEY, token.encode())]


def token_is_right(token: str | None, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether `metadata` holds `token`, in a time that does not depend on how much of it is right."""
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
