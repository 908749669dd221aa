"""Whether the Ray that this process has started lives: Ray's own calls wait for a dead head without a limit."""

from ray._private import worker


def dead_ray_process() -> str | None:
    """The name of a process that has died of the Ray that was started here; None if all live, or for another Ray."""
    node = worker._global_node
    if node is None or not node.is_head():
        return None
    return next((kind for kind, _ in node.dead_processes()), None)
