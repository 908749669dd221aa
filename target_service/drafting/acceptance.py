"""The acceptance rate of drafts at each position of a verification."""

import numpy as np
import numpy.typing as npt

Float64Array = npt.NDArray[np.float64]

FIRST_RATE = 0.7
"""The assumed rate at every position, until drafts were verified."""

PRIOR_DRAFTS = 16.0
"""The rates of all requests count as much as this number of a request's drafts, FIRST_RATE as a fourth of it."""

DECAY = 0.97
"""The weight that a request's earlier drafts keep when a draft is verified: about the last 33 drafts count.

The drafts of all requests keep DECAY ** (1 / 4), so that chance does not stop drafts that pay.
"""


def expected_tokens(acceptance: float, drafts: int) -> float:
    """E: expected tokens per verification if all positions have one rate, from 1 (no drafts) to drafts + 1.

    arXiv 2211.17192, section 3.1.
    """
    return sum(acceptance**k for k in range(drafts + 1))


class PositionAcceptance:
    """For each position, the share of the drafts that were accepted when all drafts before them were accepted.

    Positions differ: a drafter may be right about the next token and wrong about the third. A request has its own
    rates. Its prior is the rates of all requests of the worker, whose prior is FIRST_RATE.
    """

    def __init__(self, most: int, prior: "PositionAcceptance | None" = None) -> None:
        """most: number of positions. prior: is read whenever the rates are, so later changes of it count too."""
        self._prior = prior
        self._decay = DECAY if prior else DECAY**0.25
        self._tried, self._accepted = np.zeros(most), np.zeros(most)

    @property
    def rates(self) -> Float64Array:
        """float64 [most], in [0, 1]."""
        prior, weight = (self._prior.rates, PRIOR_DRAFTS) if self._prior else (FIRST_RATE, PRIOR_DRAFTS / 4)
        return np.asarray((self._accepted + weight * prior) / (self._tried + weight), np.float64)

    @property
    def expected(self) -> Float64Array:
        """float64 [most]: the probability that a draft and all drafts before it are accepted; never increases.

        The sum of the first K values is E - 1 (`expected_tokens`).
        """
        return np.cumprod(self.rates, dtype=np.float64)

    def observe(self, drafts: int, accepted: int) -> None:
        """Record a verification of `drafts` > 0 drafts. Drafts after the first rejected one do not count."""
        tried = min(accepted + 1, drafts)
        self._tried[:tried] = self._decay * self._tried[:tried] + 1
        self._accepted[:tried] *= self._decay
        self._accepted[:accepted] += 1
