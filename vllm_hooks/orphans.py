"""Ends a process of an engine when the process that started it is gone.

vLLM's engine core does not notice that its parent was killed (SIGKILL, or the kernel for memory). It would keep its
memory, and the replica that takes its place could not start. Its workers end with it (`death_writer` in
vllm.v1.executor.multiproc_executor).
"""

import multiprocessing
import os
import select
import threading


def end_with_parent() -> None:
    """End this process without delay as soon as its parent ends. Only a child of `multiprocessing` has such a parent.

    A process that vLLM forks does not call this: vLLM loads plugins once, and the child inherits that. On CPU and in
    Ray actors vLLM spawns its processes.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    try:
        handle = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        os._exit(1)
    if not parent.is_alive():  # it ended before, and its id may belong to another process
        os._exit(1)
    threading.Thread(target=_end_after, args=(handle,), name="end-with-parent", daemon=True).start()


def _end_after(handle: int) -> None:
    """handle: of a process, from `os.pidfd_open`. It is readable once the process has ended."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    os._exit(1)
