"""What Ray starts as HAProxy, by `front_proxy`: HAProxy with its configuration mended, bound to the life of its parent.

Run as a script, with the binary and its arguments. It imports nothing of Skim, so that it starts in an instant.
"""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

PRIVATE_PORTS = ("RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_HAPROXY_METRICS_PORT")
"""Environment variables with the ports of HAProxy's own statistics."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def mended(config: str, environment: Mapping[str, str]) -> str:
    """The configuration (ray.serve._private.haproxy_templates) with two changes.

    Statistics are for this machine alone; Ray binds them to every address. And no request's body is spliced: HAProxy
    (2.8.25) then often does not see that the client hung up, `abortonclose` or not, and the pools would go on.
    """
    ports = "|".join(re.escape(environment[name]) for name in PRIVATE_PORTS)
    config = re.sub(r"^\s*option splice-request\n", "", config, flags=re.MULTILINE)
    return re.sub(rf"^(\s*bind )\*?:({ports})$", r"\g<1>127.0.0.1:\2", config, flags=re.MULTILINE)


def main(binary: str, *arguments: str) -> None:
    """Become HAProxy. A parent that is killed cannot stop it, and the next Ray could not have its port."""
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        file.write_text(mended(file.read_text(), os.environ))
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
