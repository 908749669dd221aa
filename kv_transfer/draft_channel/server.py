"""The speculator's end of the draft channel."""

from collections.abc import AsyncIterator, Awaitable, Callable

import grpc

from kv_transfer.codec import decode, encode
from kv_transfer.draft_channel.protocol import MESSAGE_LIMITS, METHOD, SERVICE, token_is_right
from kv_transfer.draft_channel.tls import CertificateFiles, server_credentials
from kv_transfer.drafts import DraftReply, DraftRequest
from skim_common.errors import EngineUnavailableError, SkimError

Handler = Callable[[DraftRequest], Awaitable[DraftReply]]


class DraftServer:
    """Calls `handler` for every DraftRequest. The requests of one stream are handled one after the other.

    If the handler raises, the stream ends with the error's text, and the client pauses. If the client disconnects, the
    handler's task is cancelled. token: streams without this token are refused. host, port: the address to listen on;
    port 0 means any free port.
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
        self._handler = handler
        self._address = f"{host}:{port}"
        self._token = token
        self._credentials = server_credentials(tls) if tls else None
        self._server: grpc.aio.Server | None = None

    async def start(self) -> int:
        """Start to listen and return the port.

        Raises EngineUnavailableError if the port is in use.
        """
        # Without SO_REUSEPORT a second server on the port fails here instead of taking half of the clients.
        server = grpc.aio.server(options=[*MESSAGE_LIMITS, ("grpc.so_reuseport", 0)])
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
        if not token_is_right(self._token, context.invocation_metadata() or ()):
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong: give both pools the same one")
        async for body in bodies:
            try:
                reply = encode(await self._handler(decode(body, DraftRequest)))
            except SkimError as e:
                await context.abort(grpc.StatusCode.ABORTED, str(e))
            yield reply
