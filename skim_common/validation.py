"""pydantic's validation errors in one sentence for a person."""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

SECRETS = frozenset({"token", "api_key", "hf_token"})
"""Names of settings whose values are never shown."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One setting that is wrong. kind: pydantic's error type. given: the refused value."""

    location: tuple[int | str, ...]
    kind: str
    message: str
    given: Any

    @property
    def name(self) -> str:
        """The dotted path, such as `router.port`; empty for the whole."""
        return ".".join(str(part) for part in self.location if part != "[key]")  # pydantic's mark of a wrong name

    @property
    def fault(self) -> str:
        """What is wrong, such as `should be less than 65536, not 70000`."""
        if self.kind == "missing":
            return "is missing"
        if self.kind == "extra_forbidden":
            return "is not a setting"
        message = self.message.removeprefix("Input ").removeprefix("List ").removeprefix("Value error, ")
        if self.kind == "value_error" and not isinstance(self.given, str | int | float | list | None):
            return message  # a rule of a whole section names its settings
        secret = not SECRETS.isdisjoint(self.location)
        return message if secret else f"{message}, not {self.given!r:.60}"


def problems(error: ValidationError) -> list[Problem]:
    """All that is wrong, in pydantic's order."""
    return [Problem(e["loc"], e["type"], e["msg"], e["input"]) for e in error.errors(include_url=False)]


def sentence(error: ValidationError) -> str:
    """All that is wrong, each with its name: `keep_rate: should be less than or equal to 1, not 2`."""
    return "; ".join(f"{p.name}: {p.fault}" if p.location else p.fault for p in problems(error))
