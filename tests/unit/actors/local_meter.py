"""A meter without Ray."""

from actors.observability.metric_table import METRICS


class LocalMeter:
    """A Meter that remembers: `recorded[name]` is a list of (value, tags). What is no metric, or lacks a tag, fails."""

    def __init__(self) -> None:
        self.recorded: dict[str, list[tuple[float, dict[str, str]]]] = {}

    def record(self, name: str, value: float, **tags: str) -> None:
        assert set(tags) == set(METRICS[name].tags)
        self.recorded.setdefault(name, []).append((value, tags))
