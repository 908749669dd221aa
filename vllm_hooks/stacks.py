"""The stacks of an engine's process, in its log, whenever another process asks for them by a signal."""

import faulthandler
import signal

SIGNAL = signal.SIGUSR2
"""Neither vLLM 0.29 nor Ray 2.60 uses it."""

_STDERR = 2


def show_stacks_when_asked() -> None:
    """At SIGNAL, write the stacks of all threads to standard error, also while a C function runs. The process goes on.

    A stopped process writes them when it goes on.
    """
    faulthandler.register(SIGNAL, file=_STDERR)
