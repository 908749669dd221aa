"""Serve's client in this process."""

from typing import Any

from ray.serve.context import _disconnect, _get_global_client


def forget_earlier_serve() -> None:
    """Drop what Serve keeps in this process of the Serve of an earlier Ray.

    Serve keeps its client by the id of Ray's job, and the first job of each Ray has the same id. A second deployment in
    one process would wait for the dead controller of the first one, for ever. The public `serve.shutdown` asks that
    controller first.
    """
    _disconnect()


def running_http_options() -> Any:
    """The ray.serve.config.HTTPOptions of the Serve that runs in the connected Ray cluster; None if none does."""
    client = _get_global_client(raise_if_no_controller_running=False)
    return None if client is None else client.http_config
