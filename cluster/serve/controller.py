"""What Serve's controller does in its process when it starts: RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH."""

from cluster.serve import proxy_polls, steady_clock


def prepare() -> None:
    """It keeps to a steady clock, and has its proxies ask it again when an answer does not come."""
    steady_clock.use()
    proxy_polls.use()
