"""Headers of requests and responses: limits of a request's time, its later requests, and `Server-Timing`."""

from collections.abc import Mapping

from router.options.errors import InvalidOptionError
from router.options.request import shown
from skim_common.deadline import Deadline

TIMEOUT = "x-request-timeout-ms"
PROXY_TIMEOUT = "x-envoy-expected-rq-timeout-ms"
"""Envoy and Istio send it to their upstreams: they give the request up after this time. 0: they have no limit."""
MAX_TIMEOUT_MS = 24 * 60 * 60 * 1000

LATER_REQUESTS = "x-skim-later-requests"
"""How many requests follow that begin with most of this one's prompt, in place of what the router expects."""
MAX_LATER_REQUESTS = 1000

# In the order in which they happen. The rest of the total is the router's own work, or decoding.
TIMING_PARTS = ("tokenize", "queue", "speculate", "select", "transfer", "prefill")
TOTAL = "total"
"""From the request's arrival until its first token, or its whole answer if it is not streamed, can leave."""


def read_deadline(headers: Mapping[str, str], default_s: float | None, arrived: float) -> Deadline:
    """The deadline of a request: that of its header, else the deployment's; a proxy's if it is sooner. arrived: seconds
    of the event loop's clock. Raises InvalidOptionError."""
    client = _within(headers, TIMEOUT, 1, MAX_TIMEOUT_MS, " of milliseconds")
    proxy = _within(headers, PROXY_TIMEOUT, 0, MAX_TIMEOUT_MS, " of milliseconds")
    limits = [client if client is not None else default_s and 1e3 * default_s, proxy]
    return Deadline.after(min((limit for limit in limits if limit), default=None), arrived)


def read_later_requests(headers: Mapping[str, str]) -> int | None:
    """The number in the header; None without it. Raises InvalidOptionError."""
    return _within(headers, LATER_REQUESTS, 0, MAX_LATER_REQUESTS)


def _within(headers: Mapping[str, str], name: str, least: int, most: int, unit: str = "") -> int | None:
    """The number in a header; None without it. Raises InvalidOptionError for anything but a number in these bounds."""
    if (text := headers.get(name)) is None:
        return None
    value = whole_number(text)
    if value is None or not least <= value <= most:
        message = f"header {name} must be a whole number{unit} from {least} to {most}, not {shown(text)}"
        raise InvalidOptionError(message, name)
    return value


def whole_number(text: str) -> int | None:
    """The number in a header's value; None if it is none. Of more than 19 digits, the first 19: int() refuses 5000."""
    digits = text.strip()
    if not (digits.isascii() and digits.isdigit()):
        return None
    return int(digits.lstrip("0")[:19] or "0")


def write_server_timing(parts: Mapping[str, float]) -> str:
    """The value of `Server-Timing` (W3C). parts: milliseconds by part; those that are missing are left out."""
    return ", ".join(f"{name};dur={parts[name]:.2f}" for name in (*TIMING_PARTS, TOTAL) if name in parts)


def add_prefill(timings: dict[str, float], target: Mapping[str, float], elapsed_ms: float) -> None:
    """Add to `timings` the wait for the first output: queue and prefill as in `target`, and transfer, the rest."""
    queue, prefill = target.get("queue", 0.0), target.get("prefill", elapsed_ms)
    away = max(0.0, elapsed_ms - prefill - queue)
    timings["queue"] = timings.get("queue", 0.0) + queue
    timings["transfer"] = timings.get("transfer", 0.0) + away
    timings["prefill"] = prefill
