"""Handles of deployments with options that Serve has for itself alone."""

from ray.serve.handle import DeploymentHandle


def streaming_bytes(handle: DeploymentHandle) -> DeploymentHandle:
    """The handle for streams of bytes: over Serve's gRPC, not as Ray's object references, which do not help bytes that
    are read once. A dead replica is still a RayActorError; other failures are gRPC errors.

    Ray's `RAY_SERVE_USE_GRPC_BY_DEFAULT` would change all calls of the process.
    """
    return handle.options(stream=True, _by_reference=False)


def init_with_own_loop(handle: DeploymentHandle) -> None:
    """Make the handle fit for a process without an event loop, whatever `RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP` says.

    Serve's client keeps its handles; one that has been used keeps its loop.
    """
    if not handle.is_initialized:
        handle._init(_run_router_in_separate_loop=True)
