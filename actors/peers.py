"""The replicas of a speculator's pool, which read windows for each other over a Serve handle of their own deployment.

Which replicas serve is known in each process that has such a handle: Serve's request router, which is
`router.pools.affinity_router`, notes it here.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property

import grpc
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import ReplicaContext
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.request_router import ReplicaID

from actors.ray_hooks.handles import streaming_bytes
from kv_transfer.messages import ACCEPTED
from kv_transfer.windows import WindowScores, WindowsRequest
from kv_transfer.wire.codec import decode, encode
from skim_common.errors import EngineUnavailableError
from speculator_service.reading.peers import Peers

AT = "="
_serving: dict[str, tuple[str, ...]] = {}


def at(replica: str) -> str:
    """The `session_id` of a call that goes to this replica, or to any if it is gone."""
    return f"{AT}/{replica}"


def note_serving(replicas: Iterable[ReplicaID]) -> None:
    """These are all replicas of their deployment that serve."""
    for replica in (known := list(replicas))[:1]:
        _serving[str(replica.deployment_id)] = tuple(one.unique_id for one in known)


class ServePeers(Peers):
    """For a replica. It looks for the others when it is first asked for them."""

    def __init__(self) -> None:
        self._connecting: asyncio.Task[None] | None = None
        self._handle: DeploymentHandle

    @cached_property
    def _context(self) -> ReplicaContext:
        return serve.get_replica_context()

    @cached_property
    def own(self) -> str:  # type: ignore[override]
        return self._context.replica_tag

    def replicas(self) -> Sequence[str]:
        """As `Peers.replicas`: none until Serve has told them."""
        if self._connecting is None or (self._connecting.done() and self._connecting.exception()):
            self._connecting = asyncio.create_task(self._connect())
        known = _serving.get(str(self._context.replica_id.deployment_id), ())
        return known if self._connecting.done() else ()

    async def _connect(self) -> None:
        """Serve tells the replicas to a handle that has been used."""
        context = self._context
        # In a thread: it asks Serve's controller.
        handle = await asyncio.to_thread(serve.get_deployment_handle, context.deployment, context.app_name)
        await handle.info.remote()
        self._handle = streaming_bytes(handle)

    async def read(self, replica: str, request: WindowsRequest, begun: Callable[[], None]) -> WindowScores:
        response = self._handle.options(method_name="read_windows", session_id=at(replica)).remote(encode(request))
        try:
            if await anext(response, None) != ACCEPTED:
                raise EngineUnavailableError("it sent an unexpected first message")
            begun()
            reply = await anext(response, b"")
        except (RayError, RayServeException, grpc.RpcError) as error:
            raise EngineUnavailableError(f"it did not answer ({type(error).__name__})") from error
        finally:
            response.cancel()
        return decode(reply, WindowScores)
