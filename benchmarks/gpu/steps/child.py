"""The process of one step: `python -m benchmarks.gpu.steps.child FUNCTION SETTINGS CHECKS`.

It runs the step in a process of its own (`work`), and ends everything that the step started: when the step has ended,
or when the process that started this one is gone (its standard input ends). Servers and Ray's daemons leave their
process group and lose their parents; Linux hands them to this process (PR_SET_CHILD_SUBREAPER). One that still held the
GPU's memory would make the next step fail.
"""

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress

import psutil

_SUBREAPER = 36
"""PR_SET_CHILD_SUBREAPER of linux/prctl.h."""
_PAUSE_S = 0.05


def main(*step: str) -> int:
    """Run the step; the exit status of its process, or minus the signal that ended it. FUNCTION, SETTINGS, CHECKS."""
    if ctypes.CDLL(None, use_errno=True).prctl(_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")
    work = [sys.executable, "-m", "benchmarks.gpu.steps.work", *step]
    pid = subprocess.Popen(work, stdin=subprocess.DEVNULL).pid
    status = None
    # Not sys.stdin: nothing is ever written, so what can be read is the end.
    while status is None and not select.select([0], [], [], _PAUSE_S)[0]:
        status = _reaped().get(pid)
    while alive := _descendants():
        for process in alive:
            _end(process)
        time.sleep(_PAUSE_S)
        _reaped()
    return -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)


def _reaped() -> dict[int, int]:
    """The statuses of the children that have ended, by process id. Nobody else waits for them."""
    ended: dict[int, int] = {}
    try:
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]
    except ChildProcessError:  # there are none
        pass
    return ended


def _descendants() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if _runs(each)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _end(process: psutil.Process) -> None:
    with suppress(psutil.NoSuchProcess):
        process.kill()


if __name__ == "__main__":
    code = main(*sys.argv[1:])
    if code < 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
