"""The nodes' own metrics: each node of a Ray cluster exports those of its processes in Prometheus' text format."""

import time
from collections.abc import Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

LIMIT_S = 5.0
"""How long a node may take to answer."""

MOST_SCRAPES = 128
"""So many scrapes are kept at most. Ranges need old ones, but not many."""

NODE = "instance"
"""The label with the node's address, which Prometheus adds under this name too."""

Labels = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Scrape:
    """The metrics of all nodes at one time.

    at: seconds of a monotonic clock. samples: by metric and labels. nodes: those that answered. silent: the others.
    """

    at: float
    samples: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)
    nodes: Collection[str] = ()
    silent: tuple[str, ...] = ()


class History:
    """The scrapes of a while, at least one, in the order of time."""

    def __init__(self, first: Scrape) -> None:
        self._scrapes = [first]

    def add(self, scrape: Scrape) -> None:
        """Of too many scrapes, every second one of the older half is forgotten."""
        self._scrapes.append(scrape)
        if len(self._scrapes) > MOST_SCRAPES:
            del self._scrapes[1 : MOST_SCRAPES // 2 : 2]

    @property
    def last(self) -> Scrape:
        return self._scrapes[-1]

    def before(self, range_s: float) -> Scrape | None:
        """The newest scrape that is `range_s` seconds older than the last one; else the oldest; None if it is alone."""
        old_enough = [scrape for scrape in self._scrapes[:-1] if self.last.at - scrape.at >= range_s]
        return old_enough[-1] if old_enough else self._scrapes[0] if len(self._scrapes) > 1 else None


def scrape(addresses: Iterable[str], metrics: Collection[str]) -> Scrape:
    """Read `metrics` of all nodes. addresses: host:port of their exporters."""
    addresses = sorted(addresses)
    at = time.monotonic()
    with ThreadPoolExecutor(max_workers=max(1, min(32, len(addresses)))) as readers:
        texts = dict(zip(addresses, readers.map(_read, addresses), strict=True))
    return scraped(at, texts, metrics)


def scraped(at: float, texts: Mapping[str, str | None], metrics: Collection[str]) -> Scrape:
    """The scrape of these texts. texts: by address; None: the node did not answer."""
    samples: dict[str, dict[Labels, float]] = {metric: {} for metric in metrics}
    answered = {node: text for node, text in texts.items() if text is not None}
    for node, text in answered.items():
        # Ray's own metrics are many, and none of them is asked for.
        lines = [line for line in text.splitlines() if line.partition("{")[0].partition(" ")[0] in samples]
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                samples[sample.name][frozenset({**sample.labels, NODE: node}.items())] = sample.value
    return Scrape(at, samples, set(answered), tuple(sorted(texts.keys() - answered.keys())))


def _read(address: str) -> str | None:
    try:
        return httpx.get(f"http://{address}/metrics", timeout=LIMIT_S, trust_env=False).raise_for_status().text
    except httpx.HTTPError:
        return None
