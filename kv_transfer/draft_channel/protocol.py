"""The draft channel: one bidirectional gRPC stream from a target worker to a speculator replica.

Each message is encoded by `kv_transfer.codec`. The target sends DraftRequests, and the speculator answers with
DraftReplies in the same order. After an error the client opens a new stream. The client is `client.DraftClient`
(synchronous, inside the target's step), the server is `server.DraftServer` (asyncio, in the speculator's process). This
file and `tls` hold what both use.
"""

import hmac
from collections.abc import Iterable

from kv_transfer.codec import MAX_MESSAGE_BYTES

SERVICE = "skim.Drafts"
METHOD = "Exchange"

MESSAGE_LIMITS = [
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
]

# gRPC carries the value of a "-bin" key as bytes, so a token may contain any character.
_TOKEN_KEY = "skim-token-bin"


def token_metadata(token: str | None) -> list[tuple[str, bytes]]:
    """The gRPC metadata that a client sends when it opens a stream."""
    return [] if token is None else [(_TOKEN_KEY, token.encode())]


def token_is_right(token: str | None, metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether `metadata` holds `token`; compared in constant time."""
    if token is None:
        return True
    shown = dict(metadata).get(_TOKEN_KEY, b"")
    return isinstance(shown, bytes) and hmac.compare_digest(shown, token.encode())
