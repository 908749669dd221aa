"""The limits of an API key: requests at a time, and prompt tokens per minute. They count per router replica."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import Scope

from router.admission.api_keys import ApiKey
from router.options.errors import RefusedError
from skim_common.decaying_mean import DecayingMean

DECAY = 0.9
"""Weight of what is known of earlier requests after the next one."""
MOST_WAIT_S = 60


class LimitReachedError(RefusedError):
    """A client sends more than its key allows (HTTP 429)."""

    def __init__(self, message: str, retry_after_s: int) -> None:
        super().__init__(429, "RateLimitError", message, retry_after_s)


class KeyUse:
    """What one key uses now. clock: seconds.

    Tokens are a bucket that holds one minute's worth. A request may start while it is not empty, and the prompt's
    tokens are taken out when they have been counted. So a prompt may be longer than the bucket; the next one then waits
    longer.
    """

    def __init__(self, key: ApiKey, clock: Callable[[], float] = time.monotonic) -> None:
        self._key, self._clock = key, clock
        self._ongoing = 0
        self._met_s = DecayingMean(DECAY)  # E[d^2] / E[d] of the durations d of ended requests
        self._level, self._filled = float(key.prompt_tokens_per_minute or 0), clock()

    def limit_by(self, key: ApiKey) -> None:
        """Take the limits of the key's entry in a file that has changed."""
        if key.prompt_tokens_per_minute != self._key.prompt_tokens_per_minute:
            self._level, self._filled = float(key.prompt_tokens_per_minute or 0), self._clock()
        self._key = key

    @property
    def idle(self) -> bool:
        """Whether nothing is lost if this object is dropped."""
        self._fill()
        return not self._ongoing and self._level >= (self._key.prompt_tokens_per_minute or 0)

    def start(self) -> float:
        """Count a request until `end`, which gets what this returns: the time now. Raises LimitReachedError."""
        limit = self._key.max_ongoing_requests
        if limit is not None and self._ongoing >= limit:
            message = f"this API key may have {limit} requests at a time; wait until one of them has its answer"
            raise LimitReachedError(message, self._until_an_end_s())
        self._check_tokens()
        self._ongoing += 1
        return self._clock()

    def end(self, started: float) -> None:
        self._ongoing -= 1
        took_s = self._clock() - started
        self._met_s.add(took_s**2, took_s)

    def _until_an_end_s(self) -> int:
        """When one of the ongoing requests will probably have ended, in seconds, from 1 to MOST_WAIT_S.

        A request that is met on its way has E[d^2] / 2E[d] to go, for durations d: short requests are seldom met. Of
        several that are independent, the first one ends sooner.
        """
        left_s = self._met_s.value / 2
        return min(max(1, math.ceil(left_s / self._ongoing)), MOST_WAIT_S)

    def spend(self, prompt_tokens: int, *, first: bool) -> None:
        """Take the tokens of a prompt. first: of what is computed for its request; only that one is refused, with
        LimitReachedError."""
        if first:
            self._check_tokens()
        if self._key.prompt_tokens_per_minute is not None:  # else nothing fills it again
            self._level -= prompt_tokens

    def give_back(self, prompt_tokens: int) -> None:
        """Put back what a prompt took that was refused."""
        self._fill()
        self._level = min(self._key.prompt_tokens_per_minute or 0, self._level + prompt_tokens)

    def _check_tokens(self) -> None:
        per_minute = self._key.prompt_tokens_per_minute
        if per_minute is None:
            return
        self._fill()
        if self._level <= 0:
            wait = max(1, math.ceil(60 * (1 - self._level) / per_minute))
            raise LimitReachedError(
                f"this API key may send {per_minute} prompt tokens per minute; try again in {wait} s", wait
            )

    def _fill(self) -> None:
        per_minute, now = self._key.prompt_tokens_per_minute or 0, self._clock()
        self._level = min(per_minute, self._level + per_minute * (now - self._filled) / 60)
        self._filled = now


class KeyUses:
    """The use of each key, by name. A use is dropped when it is idle and its key is no longer asked for."""

    MOST_IDLE = 1024

    def __init__(self) -> None:
        self._uses: dict[str, KeyUse] = {}

    def of(self, key: ApiKey) -> KeyUse:
        use = self._uses.get(key.name)
        if use is None:
            if len(self._uses) >= self.MOST_IDLE:
                self._uses = {name: one for name, one in self._uses.items() if not one.idle}
            use = self._uses[key.name] = KeyUse(key)
        use.limit_by(key)
        return use


SCOPE_KEY = "skim.caller"


@dataclass(frozen=True, slots=True, eq=False)
class Caller:
    """Whose key a request has, and what that key uses."""

    key: ApiKey
    use: KeyUse


def caller_of(scope: Scope) -> Caller | None:
    """Whose request it is; None if the endpoint asks for no key."""
    return scope.get(SCOPE_KEY)
