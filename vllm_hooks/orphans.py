"""Ends a process of an engine when the process that started it is gone.

vLLM's engine core does not notice that its parent was killed (SIGKILL, or the kernel for memory). It would keep its
memory, and the replica that takes its place could not start. Its workers end with it (`death_writer` in
vllm.v1.executor.multiproc_executor), unless they hang.
"""

import ctypes
import multiprocessing
import os
import select
import signal
import threading

PR_SET_PDEATHSIG = 1
"""Of prctl(2): the signal that a process gets from the kernel when its parent ends."""


def end_with_parent() -> None:
    """End this process without delay as soon as its parent ends. Only a child of `multiprocessing` has such a parent.

    The kernel does it, so a stopped process ends too. To the kernel, the parent is the *thread* that started this
    process: an engine must be started by a thread that lives as long as the engine. Ours are main threads and those of
    event loops. With a fork server (tests) the kernel's parent is the server, so a thread watches the real one.

    A process that vLLM forks does not call this: vLLM loads plugins once, and the child inherits that. On CPU and in
    Ray actors vLLM spawns its processes.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    _ask_kernel()
    try:
        handle = os.pidfd_open(parent.pid)
    except ProcessLookupError:
        os._exit(1)
    if not parent.is_alive():  # it ended before, and its id may belong to another process
        os._exit(1)
    threading.Thread(target=_end_after, args=(handle,), name="end-with-parent", daemon=True).start()


def _ask_kernel() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _end_after(handle: int) -> None:
    """handle: of a process, from `os.pidfd_open`. It is readable once the process has ended."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.poll()
    os._exit(1)
