"""The API keys that the endpoint takes, and what each of them uses.

They come from a file, which may change while the router runs, and from vLLM's options. The limits of a key count per
router replica. The file has names and SHA-256 hashes, no keys. A key that `skim keys new` makes has 256 random bits, so
a fast hash is enough: nobody can try all keys.
"""

import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from starlette.types import Scope

from router.decision.decaying_mean import DecayingMean
from router.options.errors import RefusedError
from skim_common.errors import SkimError
from skim_common.validation import problems
from skim_common.watched_files import WatchedFiles

SETTING = "router.api_keys_file"
DEFAULT_NAME = "default"
"""The name of a key of `target.engine_options.api_key` or of the environment variable VLLM_API_KEY."""

FIRST_PRIORITY = -(2**63)
"""The lowest number that vLLM takes as a priority, which is served first: as a limit, none."""

Hash = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][-._A-Za-z0-9]{0,62}$")]


class ApiKey(BaseModel):
    """A client of the endpoint. The limits count per router replica; null: no limit.

    sha256: hashes of its keys, in hexadecimal; several while one key replaces another.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Name
    sha256: Annotated[tuple[Hash, ...], Field(min_length=1)]
    max_ongoing_requests: int | None = Field(None, ge=1, description="requests at a time")
    prompt_tokens_per_minute: int | None = Field(None, ge=1, description="prompt tokens per minute, on average")
    share: float = Field(
        1.0, gt=0, le=1000, allow_inf_nan=False, description="weight of its share while requests of several keys wait"
    )
    min_priority: int = Field(
        0, ge=FIRST_PRIORITY, lt=2**63, description="lowest `priority` of its requests; lower numbers are served first"
    )
    isolate_cache: bool = Field(False, description="share no cached prefix with other keys")


class KeyFile(BaseModel):
    """The file of keys. Without keys, every request is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: tuple[ApiKey, ...]

    @model_validator(mode="after")
    def _each_once(self) -> "KeyFile":
        for what, values in (
            ("name", [key.name for key in self.keys]),
            ("sha256", [one for key in self.keys for one in key.sha256]),
        ):
            if len(set(values)) < len(values):
                raise ValueError(f"two keys have the same {what}")
        return self


def new_key() -> str:
    """A new key of 256 random bits."""
    return "sk-" + secrets.token_urlsafe(32)


def hash_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()


def read_keys(file: Path) -> tuple[ApiKey, ...]:
    """The keys in a YAML or JSON file. Raises SkimError, which names the setting and never the file's content."""
    try:
        text = file.read_text(encoding="utf-8")
        return KeyFile.model_validate(yaml.safe_load(text)).keys
    except OSError as error:
        raise SkimError(f"{SETTING}: the file cannot be read: {error.strerror}") from None
    except ValidationError as error:
        # Without the refused value: it may be a key that somebody wrote in the place of its hash.
        faults = "; ".join(f"{problem.name}: {problem.message}" for problem in problems(error))
        raise SkimError(f"{SETTING}: {faults}") from None
    except (UnicodeDecodeError, yaml.YAMLError):
        raise SkimError(f"{SETTING}: the file is not YAML") from None


class ApiKeys:
    """The keys that are valid now. Raises SkimError if `file` cannot be read at the start.

    plain: further keys, as text; their name is DEFAULT_NAME, which no key of the file may have beside them. Alone, they
    may send any priority: nobody else is overtaken.
    """

    def __init__(self, file: str | None, plain: Iterable[str] = ()) -> None:
        hashes = tuple(map(hash_of, plain))
        least = 0 if file else FIRST_PRIORITY
        self._plain = (ApiKey(name=DEFAULT_NAME, sha256=hashes, min_priority=least),) if hashes else ()
        self._file = WatchedFiles([file], lambda: self._read(Path(file)), "the keys") if file else None

    @property
    def wanted(self) -> bool:
        """Whether the endpoint asks for a key."""
        return self._file is not None or bool(self._plain)

    def find(self, key: str) -> ApiKey | None:
        """Whose key it is. Each hash is compared, in constant time, so the time does not tell which one is close."""
        from_file = self._file.current() if self._file else ()
        sent, found = hash_of(key), None
        for known in (*self._plain, *from_file):
            for one in known.sha256:
                if hmac.compare_digest(sent, one):
                    found = known
        return found

    def _read(self, file: Path) -> tuple[ApiKey, ...]:
        """As `read_keys`. Limits, cache and explain view go by name, so two kinds of keys must not share one."""
        keys = read_keys(file)
        if self._plain and any(key.name == DEFAULT_NAME for key in keys):
            raise SkimError(
                f"{SETTING}: the name {DEFAULT_NAME} is that of target.engine_options.api_key or VLLM_API_KEY; "
                "rename the key in the file, or leave the other one out"
            )
        return keys


DURATION_DECAY = 0.9
"""Weight of the durations of earlier requests after the next one."""
MAX_RETRY_AFTER_S = 60


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
        self._met_s = DecayingMean(DURATION_DECAY)  # E[d^2] / E[d] of the durations d of ended requests
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
            raise LimitReachedError(message, self._retry_after_s())
        self._check_tokens()
        self._ongoing += 1
        return self._clock()

    def end(self, started: float) -> None:
        self._ongoing -= 1
        took_s = self._clock() - started
        self._met_s.add(took_s**2, took_s)

    def _retry_after_s(self) -> int:
        """When one of the ongoing requests will probably have ended, from 1 to MAX_RETRY_AFTER_S.

        A running request of mean duration has E[d^2] / 2E[d] to go, for durations d; the first of several ends sooner.
        """
        return min(max(1, math.ceil(self._met_s.value / 2 / self._ongoing)), MAX_RETRY_AFTER_S)

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
