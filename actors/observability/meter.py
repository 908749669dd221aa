"""What code that records metrics needs, without Ray."""

from typing import Protocol


class Meter(Protocol):
    """Records metrics. Tests use one that stores them."""

    def record(self, name: str, value: float, **tags: str) -> None:
        """Add `value` to a counter, set a gauge to it, or observe it in a histogram, by the kind of METRICS[name]."""
        ...
