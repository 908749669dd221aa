"""Serve's client in this process."""

from ray.serve.context import _disconnect

HOOKED = (("ray.serve.context", "_disconnect", ""),)
"""For `skim_common.symbols`."""


def forget_earlier_serve() -> None:
    """Drop what Serve keeps in this process of the Serve of an earlier Ray.

    Serve keeps its client by the id of Ray's job, and the first job of each Ray has the same id. A second deployment in
    one process would wait for the dead controller of the first one, for ever. The public `serve.shutdown` asks that
    controller first.
    """
    _disconnect()
