"""A watchdog timer: ends a replica's process that makes no progress, such as one that is stopped (SIGSTOP).

Serve lets Ray kill a replica that fails its health checks. Ray 2.60 asks the process to end, and if it cannot connect
to it, takes it for dead and does no more ("Node with actor is already dead" in the log of its GCS). A stopped process
then keeps its resources for ever, and no other replica takes its place. Nothing inside it can help, so a shell beside
it does.
"""

import logging
import os
import subprocess
import threading

logger = logging.getLogger(__name__)

LIMIT_S = 40
"""A process that shows no sign of life for so long ends. It is longer than Serve's own health checks take."""
GRACE_S = 5
"""After a pause of the whole machine, or when its clock is set ahead, the process has so long to show that it lives."""
PERIOD_S = 1.0

_SHELL = """
while :; do
    read -r -t "$1"; state=$?
    if [ $state -gt 128 ]; then read -r -t "$2"; state=$?; fi
    if [ $state -gt 128 ]; then break; fi
    if [ $state -ne 0 ]; then exit 0; fi
done
read -r _ _ _ parent _ < /proc/$$/stat
if [ "$parent" = "$PPID" ]; then kill -KILL "$PPID"; fi
"""
"""Reads the signs of life: bash returns over 128 when that takes too long, and 1 when the process has ended. A process
that has ended while another one keeps its end open is no longer the shell's parent."""


def start_watchdog(
    limit_s: float = LIMIT_S, grace_s: float = GRACE_S, period_s: float = PERIOD_S
) -> subprocess.Popen[bytes] | None:
    """Start it for this process. period_s: seconds between two signs of life. Returns the shell.

    Without bash there is none, the log says so, and the process serves all the same.
    """
    command = ["bash", "-c", _SHELL, "watchdog", str(limit_s), str(grace_s)]
    try:
        shell = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
    except OSError as error:
        logger.warning("a replica that is stopped is left to Ray, because bash cannot be started: %s", error.strerror)
        return None
    threading.Thread(target=_live, args=(shell, period_s), name="watchdog", daemon=True).start()
    return shell


def _live(shell: subprocess.Popen[bytes], period_s: float) -> None:
    assert shell.stdin is not None
    ended = threading.Event()
    while not ended.wait(period_s):
        try:
            os.write(shell.stdin.fileno(), b"\n")
        except OSError:  # the shell was killed
            shell.wait()
            return
