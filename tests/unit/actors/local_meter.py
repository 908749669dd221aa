"""A meter without Ray."""

from actors.observability.metric_table import METRICS


class LocalMeter:
    """A Meter that stores: `recorded[name]` is a list of (value, tags). An unknown metric or a missing tag fails."""

    def __init__(self) -> None:
        self.recorded: dict[str, list[tuple[float, dict[str, str]]]] = {}

    def record(self, name: str, value: float, **tags: str) -> None:
        assert set(tags) == set(METRICS[name].tags)
        self.recorded.setdefault(name, []).append((value, tags))
