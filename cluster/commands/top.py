"""`skim top`: a live page of a deployment, or one page for people or scripts."""

import json
import signal
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from threading import Event
from typing import Any

import ray
from rich.console import Console, RenderableType
from rich.live import Live

from cluster.commands.status import LIMIT_S, running_parts
from cluster.serve.deployment import join_ray
from cluster.serve.ray_liveness import call_with_timeout
from cluster.serve.status import Part
from cluster.serve.watch import watch
from cluster.top.alerts import Alerts
from cluster.top.page import Page, page
from cluster.top.quantities import Quantities, metrics_of
from cluster.top.scrapes import History, Scrape, scrape


def run_top(address: str, interval_s: float, console: Console, *, once: bool, as_json: bool) -> None:
    """Show pages until Ctrl-C, or one page after one interval.

    Raises SkimError if no deployment runs, or if Ray ends meanwhile.
    """
    join_ray(address)
    try:
        parts = running_parts(address)
        top = Top(interval_s)
        if not once:
            _show(top, parts, interval_s, console)
            return
        time.sleep(interval_s)
        found = top.next_page(running_parts(address))
        console.print_json(json.dumps(found.as_json())) if as_json else console.print(page(found))
    finally:
        ray.shutdown()


def scrape_cluster(address: str, metrics: Collection[str]) -> Scrape:
    """These metrics of the nodes of the cluster at `address`, now. Raises SkimError if no deployment runs there."""
    join_ray(address)
    try:
        running_parts(address)
        return scrape(call_with_timeout(_exporters, LIMIT_S), metrics)
    finally:
        ray.shutdown()


class Top:
    """Makes pages. The first scrape is taken here, so that the first page has values."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._quantities, self._alerts = Quantities(interval_s), Alerts()
        self._metrics = metrics_of([*self._quantities.nodes, *self._alerts.nodes])
        self._addresses: list[str] = []
        self._history = History(self._scrape())

    def first_page(self, parts: Sequence[Part]) -> Page:
        """The page of the first scrape alone, which has no rates."""
        return self._page(parts)

    def next_page(self, parts: Sequence[Part], lost: str = "") -> Page:
        """The page of another scrape. lost: why `parts` are old; empty: they are not."""
        self._history.add(self._scrape())
        return self._page(parts, lost)

    def _page(self, parts: Sequence[Part], lost: str = "") -> Page:
        last, before = self._history.last, self._history.before(self._interval_s)
        return Page(
            time.time(),
            None if before is None else last.at - before.at,
            parts,
            lost,
            sorted(last.nodes),
            last.silent,
            self._quantities.values(self._history),
            self._alerts.look(self._history),
        )

    def _scrape(self) -> Scrape:
        # While Ray's head is away, its nodes are those of before.
        with suppress(Exception):
            self._addresses = call_with_timeout(_exporters, LIMIT_S)
        return scrape(self._addresses, self._metrics)


class LivePage:
    """The View of `watch` that replaces the page."""

    def __init__(self, top: Top, parts: Sequence[Part], show: Callable[[RenderableType], Any]) -> None:
        self._top, self._parts, self._show = top, parts, show

    def look(self, parts: Sequence[Part]) -> None:
        self._parts = parts
        self._show(page(self._top.next_page(parts)))

    def lost(self, reason: str) -> None:
        self._show(page(self._top.next_page(self._parts, reason)))


def _show(top: Top, parts: Sequence[Part], interval_s: float, console: Console) -> None:
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with Live(page(top.first_page(parts)), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        watch(stop, LivePage(top, parts, lambda shown: live.update(shown, refresh=True)), interval_s)


def _exporters() -> list[str]:
    """The addresses at which the nodes that are alive export their metrics."""
    return [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in ray.nodes() if node["Alive"]]
