"""A measured value with its range over the rounds."""

import statistics
from collections.abc import Iterable, Mapping


def spread(values: Iterable[float]) -> dict[str, float]:
    """The `median`, `lowest` and `highest` of the values."""
    found = list(values)
    return {"median": statistics.median(found), "lowest": min(found), "highest": max(found)}


def in_words(value: Mapping[str, float]) -> str:
    """A spread of ratios: `1.25 (1.20 to 1.31)`."""
    return f"{value['median']:.2f} ({value['lowest']:.2f} to {value['highest']:.2f})"
