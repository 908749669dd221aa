"""The header with which a client tells how many requests follow that begin with most of this one's prompt.

A batch job knows it (`cluster.batch.order`), and so may other clients. It replaces the number that the router expects
(`router.later_turns`).
"""

from collections.abc import Mapping

from router.options import InvalidOptionError, shown

LATER_REQUESTS = "x-skim-later-requests"
MOST = 1000


def read_later_requests(headers: Mapping[str, str]) -> int | None:
    """The number in the header; None without it.

    Raises InvalidOptionError for a header that is not a whole number from 0 to MOST.
    """
    text = headers.get(LATER_REQUESTS)
    if text is None:
        return None
    digits = text.strip()
    value = int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 20 else -1
    if not 0 <= value <= MOST:
        message = f"header {LATER_REQUESTS} must be a whole number from 0 to {MOST}, not {shown(text)}"
        raise InvalidOptionError(message, LATER_REQUESTS)
    return value
