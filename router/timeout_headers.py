"""The headers with which a client, or a proxy before the router, limits the time of a request."""

from collections.abc import Mapping

from kv_transfer.deadline import Deadline
from router.options import InvalidOptionError, shown

TIMEOUT = "x-request-timeout-ms"
PROXY_TIMEOUT = "x-envoy-expected-rq-timeout-ms"
"""Envoy and Istio send it to their upstreams: they give the request up after this time."""
LONGEST_MS = 24 * 60 * 60 * 1000


def read_deadline(headers: Mapping[str, str], default_s: float | None, arrived: float) -> Deadline:
    """The deadline of a request: that of its header, else the deployment's; a proxy's if it is sooner.

    arrived: seconds of the event loop's clock. Raises InvalidOptionError for a header that is not a whole number of
    milliseconds from 1 to LONGEST_MS.
    """
    own = _milliseconds(headers, TIMEOUT)
    limits = [own if own is not None else default_s and 1e3 * default_s, _milliseconds(headers, PROXY_TIMEOUT)]
    return Deadline.after(min((limit for limit in limits if limit), default=None), arrived)


def _milliseconds(headers: Mapping[str, str], name: str) -> int | None:
    """None without the header. A proxy without a limit sends 0."""
    text = headers.get(name)
    if text is None or (name == PROXY_TIMEOUT and text.strip() == "0"):
        return None
    value = int(text) if text.strip().isascii() and text.strip().isdigit() and len(text) < 20 else 0
    if not 1 <= value <= LONGEST_MS:
        message = f"header {name} must be a whole number of milliseconds from 1 to {LONGEST_MS}, not {shown(text)}"
        raise InvalidOptionError(message, name)
    return value
