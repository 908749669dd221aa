"""A port for a deployment of the demo, of a benchmark or of a test."""

import random
from contextlib import suppress

from cluster.serve.preflight import check_port
from skim_common.errors import SkimError

# Above the ports of Ray's workers (10002 to 19999). Below those of Serve's replicas (from 30000) and of Linux's
# outgoing connections (from 32768).
QUIET_PORTS = range(20000, 30000)


def free_port() -> int:
    """A free port on the loopback interface, outside the range that Linux gives to outgoing connections."""
    for port in random.SystemRandom().sample(QUIET_PORTS, len(QUIET_PORTS)):
        with suppress(SkimError):
            check_port("127.0.0.1", port)
            return port
    raise SkimError(f"none of the ports {QUIET_PORTS.start} to {QUIET_PORTS.stop - 1} is free on this machine")
