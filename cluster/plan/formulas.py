"""The formulas of the plan that are not about one model. Times are in seconds, sizes in bytes."""

from target_service.drafting.acceptance import expected_tokens

MOST_DRAFTS = 8
"""The largest draft length that is tried."""


def roofline(operations: float, size: float, operations_per_second: float, bytes_per_second: float) -> float:
    """Seconds of a kernel that computes and reads memory at the same time (Williams et al., CACM 52(4), 2009)."""
    return max(operations / operations_per_second, size / bytes_per_second)


def all_reduce(size: float, ranks: int, bytes_per_second: float) -> float:
    """Seconds in which a ring adds up `size` bytes of each rank: each sends 2 * (ranks - 1) / ranks of them
    (Patarasuk and Yuan, JPDC 69(2), 2009). bytes_per_second: of one rank's link, in one direction.
    """
    return 2 * (ranks - 1) / ranks * size / bytes_per_second


def mean_wait(busy: float, service: float) -> float:
    """Seconds that a prompt waits in the queue of a server that takes `service` seconds for each prompt.

    Pollaczek and Khinchine, for Poisson arrivals and equal prompts (M/D/1). busy: the share of the time in which the
    server works, in [0, 1).
    """
    return busy * service / (2 * (1 - busy))


def speed_up(acceptance: float, drafts: int, draft: float, *, exchange: float = 0.0, verify: float = 1.0) -> float:
    """How many times faster decoding is with `drafts` drafts per step: E / (verify + exchange + drafts * draft).

    E is `expected_tokens`. arXiv 2211.17192, theorem 3.8, has verify = 1 and no exchange. draft, exchange, verify: the
    times of one draft, of the exchange, and of the verification, in plain steps of the target.
    """
    return expected_tokens(acceptance, drafts) / (verify + (exchange if drafts else 0.0) + drafts * draft)


def best_drafts(acceptance: float, draft: float, *, exchange: float = 0.0) -> int:
    """The draft length K with the largest `speed_up`, from 0 to MOST_DRAFTS; the smallest of equal ones."""
    return max(range(MOST_DRAFTS + 1), key=lambda drafts: speed_up(acceptance, drafts, draft, exchange=exchange))
