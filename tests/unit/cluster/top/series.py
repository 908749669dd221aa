"""Scrapes of series in the notation of promtool's tests, for example `0+90x60`."""

import re
from collections.abc import Mapping

from cluster.top.scrapes import NODE, History, Scrape

MINUTE_S = 60.0
NODES = ("a:1",)


def history(series: Mapping[str, str], minutes: int) -> History:
    """One scrape a minute, from minute 0 to `minutes`."""
    samples = [scrape({name: values(text) for name, text in series.items()}, minute) for minute in range(minutes + 1)]
    found = History(samples[0])
    for sample in samples[1:]:
        found.add(sample)
    return found


def scrape(series: Mapping[str, list[float]], minute: int) -> Scrape:
    """The scrape of a minute. A series that has ended is missing."""
    samples: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for name, found in series.items():
        if minute < len(found):
            metric, _, labels = name.partition("{")
            named = frozenset({*re.findall(r'(\w+)="([^"]*)"', labels), (NODE, NODES[0])})
            samples.setdefault(metric, {})[named] = found[minute]
    return Scrape(minute * MINUTE_S, samples, NODES)


def values(text: str) -> list[float]:
    """`a+bxn`: a, and n values more that are each greater by b; `axn`: a, n times more; `a`: a once."""
    found: list[float] = []
    for word in text.split():
        first, step, times = re.fullmatch(r"([\d.]+)(?:\+([\d.]+))?(?:x(\d+))?", word).groups(default="0")
        found += [float(first) + float(step) * number for number in range(int(times) + 1)]
    return found
