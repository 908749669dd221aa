"""A handle of the running application for a command, which has no event loop."""

from ray import serve
from ray.serve.handle import DeploymentHandle


def app_handle(name: str) -> DeploymentHandle:
    """The handle of the application `name`. Raises RayServeException if it does not run.

    In a pod the environment has `SERVE_SWITCHES`, with which a handle would need the event loop of its process.
    """
    handle = serve.get_app_handle(name)
    if not handle.is_initialized:  # Serve's client keeps its handles
        handle._init(_run_router_in_separate_loop=True)
    return handle
