"""Handles of deployments with options that Serve has for itself alone."""

from ray.serve.handle import DeploymentHandle

from skim_common.symbols import Hook

_OPTIONS = "self method_name multiplexed_model_id session_id stream _prefer_local_routing _by_reference"

HOOK = Hook(
    what="options of handles",
    how=(
        "Ray: for a command, `DeploymentHandle._init` with `_run_router_in_separate_loop`; for bytes over gRPC, the"
        " option `_by_reference`"
    ),
    until=(
        "a handle can be used without an event loop whatever the environment says; `_by_reference` is public, or gRPC"
        " is the default"
    ),
    symbols=(
        ("ray.serve.handle", "DeploymentHandle._init", "self"),
        ("ray.serve.handle", "DeploymentHandle.options", _OPTIONS),
        ("ray.serve._private.handle_options", "InitHandleOptions._run_router_in_separate_loop", ""),
        ("ray.serve._private.handle_options", "DynamicHandleOptions._by_reference", ""),
    ),
)


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
