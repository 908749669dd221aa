"""Serve's client in this process."""

from ray.serve.context import _disconnect

from skim_common.symbols import Hook

HOOK = Hook(
    what="a second Ray in one process",
    how="Ray: `serve.context._disconnect` is called",
    until="`ray.shutdown` drops Serve's client (`test_a_second_deployment_of_a_process_asks_its_own_serve`)",
    symbols=(("ray.serve.context", "_disconnect", ""),),
)


def forget_earlier_serve() -> None:
    """Drop what Serve keeps in this process of the Serve of an earlier Ray.

    Serve keeps its client by the id of Ray's job, and the first job of each Ray has the same id. A second deployment in
    one process would wait for the dead controller of the first one, for ever. The public `serve.shutdown` asks that
    controller first.
    """
    _disconnect()
