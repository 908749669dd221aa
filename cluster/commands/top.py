"""`skim top`: what a running deployment does, from the merged `/metrics` of its endpoint."""

import json
import math
import signal
import time
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime
from threading import Event
from typing import Annotated, Any

import httpx
import typer
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from skim_common.errors import SkimError
from skim_common.proxies import client_options

LIMIT_S = 10.0
"""How long the endpoint may take to answer."""
PROMPTS, TOKENS, KEPT = (f"skim_router_{what}_total" for what in ("requests", "prompt_tokens", "kept_tokens"))

Series = dict[str, str]
Figure = float | None | dict[str, float]
"""None: there was nothing to measure. A mapping where there is a value for each label."""


@dataclass(frozen=True)
class Scrape:
    """at: seconds of a monotonic clock. samples: by the name of the series, its labels and value."""

    at: float
    samples: dict[str, list[tuple[Series, float]]]

    def sums(self, name: str, by: str = "", **where: str) -> dict[str, float]:
        """The sum over the series with the labels `where`, by the value of the label `by`."""
        found: dict[str, float] = defaultdict(float)
        for labels, value in self.samples.get(name, []):
            if where.items() <= labels.items():
                found[labels.get(by, "")] += value
        return dict(found)


def read_metrics(url: str) -> Scrape:
    """The metrics of the endpoint. url: with or without /v1. Raises SkimError."""
    base, at = url.rstrip("/").removesuffix("/v1"), time.monotonic()
    try:
        text = httpx.get(f"{base}/metrics", timeout=LIMIT_S, **client_options(base)).raise_for_status().text
        families = list(text_string_to_metric_families(text))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        raise SkimError(f"the endpoint {base} gave no metrics: {error or type(error).__name__}") from None
    samples: dict[str, list[tuple[Series, float]]] = defaultdict(list)
    for sample in (sample for family in families for sample in family.samples):
        samples[sample.name].append((sample.labels, sample.value))
    if not any(name.startswith("skim_") for name in samples):
        raise SkimError(f"the endpoint {base} has no metrics of Skim")
    return Scrape(at, dict(samples))


def figures(before: Scrape, now: Scrape) -> dict[str, Figure]:
    """What happened between two readings, and what is now. Names end in their unit: `_s`, `_per_s` or `_share`."""
    grown = _grown(before, now)
    seconds = max(now.at - before.at, 1e-9)

    def rates(name: str, by: str, **where: str) -> Figure:
        return {label: count / seconds for label, count in grown.sums(name, by, **where).items() if count}

    def share(part: str, whole: str, **where: str) -> float | None:
        total = sum(grown.sums(whole, **where).values())
        return sum(grown.sums(part, **where).values()) / total if total else None

    speculative, drafts = {"mode": "speculative"}, share("skim_target_accepted_total", "skim_target_rounds_total")
    return {
        "replicas": now.sums("skim_router_pool_replicas", "pool", state="running"),
        "replicas_configured": now.sums("skim_router_pool_replicas", "pool", state="configured"),
        "prompts_per_s": rates(PROMPTS, "mode"),
        "dense_per_s": rates(PROMPTS, "reason", mode="dense"),
        "first_token_median_s": _quantiles(grown, "skim_router_ttft_seconds", 0.5, by="mode", part="total"),
        "first_token_90_s": _quantiles(grown, "skim_router_ttft_seconds", 0.9, by="mode", part="total"),
        "kept_share": share(KEPT, TOKENS, **speculative),
        "kept_of_all_share": share(KEPT, TOKENS),
        "coverage_median_share": _quantiles(grown, "skim_router_coverage", 0.5).get(""),
        "cached_share": share("skim_router_cached_tokens_total", KEPT),
        "accepted_share": share("skim_target_accepted_total", "skim_target_drafts_total"),
        "tokens_per_verification": None if drafts is None else 1 + drafts,
        "sessions": now.sums("skim_speculator_sessions").get(""),
        "queued": now.sums("skim_router_queued").get(""),
        "running": now.sums("vllm:num_requests_running").get(""),
        "refused_per_s": rates("skim_router_refused_total", "reason"),
        "shed_per_s": rates("skim_router_shed_total", "kind"),
    }


def _grown(before: Scrape, now: Scrape) -> Scrape:
    """The increase of each series. One that is new, or smaller than before, has begun at 0."""
    grown = {}
    for name, series in now.samples.items():
        old = {frozenset(labels.items()): value for labels, value in before.samples.get(name, [])}
        known = ((labels, value, old.get(frozenset(labels.items()), 0.0)) for labels, value in series)
        grown[name] = [(labels, value - was if value >= was else value) for labels, value, was in known]
    return Scrape(now.at, grown)


def _quantiles(grown: Scrape, name: str, share: float, by: str = "", **where: str) -> dict[str, float]:
    """As Prometheus' histogram_quantile: linear inside a bucket; in the last bucket its lower bound."""
    found = {}
    for label in grown.sums(f"{name}_count", by, **where):
        own = {**where, by: label} if by else where
        buckets = sorted((float(le), count) for le, count in grown.sums(f"{name}_bucket", "le", **own).items())
        if not buckets or not buckets[-1][1]:
            continue
        rank, low, below = share * buckets[-1][1], 0.0, 0.0
        for bound, count in buckets:
            if count >= rank:
                inside = (rank - below) / (count - below) if count > below else 1.0
                found[label] = low if math.isinf(bound) else low + (bound - low) * inside
                break
            low, below = bound, count
    return found


def page(found: dict[str, Figure], over_s: float, trouble: str = "") -> RenderableType:
    """The figures for a terminal. trouble: why they are old."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    for name, figure in found.items():
        unit = next((unit for unit in ("per_s", "share", "s") if name.endswith(f"_{unit}")), "")
        words = name.removesuffix(f"_{unit}").replace("_", " ")
        parts = figure if isinstance(figure, dict) else {} if figure is None else {"": figure}
        table.add_row(
            words, ", ".join(f"{label} {_number(part, unit)}".strip() for label, part in parts.items()) or "-"
        )
    head = f"skim top: values of the last {over_s:.0f} s, {datetime.now(UTC):%H:%M:%S} UTC"
    return Group(Text(head, style="bold"), table, *([Text(trouble, style="red")] if trouble else []))


def _number(value: float, unit: str) -> str:
    if unit == "s":
        return f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.1f} s"
    return {"share": f"{100 * value:.0f} %", "per_s": f"{value:.3g}/s"}.get(unit, f"{value:.4g}")


def top(
    url: Annotated[str, typer.Argument(metavar="[URL]", help="The endpoint.")] = "http://localhost:8000",
    interval: Annotated[
        float, typer.Option(min=1.0, help="Seconds from page to page; rates and quantiles hold for this time.")
    ] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Print one page, after one interval, and leave.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print JSON instead of the page.")] = False,
) -> None:
    """Show a running deployment on one page until Ctrl-C: replicas, modes, first token, kept share, drafts, queue.

    The values come from the endpoint's /metrics. It needs no Prometheus server.
    """
    if as_json and not once:
        raise SkimError("--json prints one page: add --once")
    console, stop, before = Console(highlight=False), Event(), read_metrics(url)
    if once:
        time.sleep(interval)
        now = read_metrics(url)
        found, over_s = figures(before, now), now.at - before.at
        console.print_json(json.dumps({"over_s": over_s, **found})) if as_json else console.print(page(found, over_s))
        return
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    shown: tuple[dict[str, Any], float] = figures(before, before), 0.0
    with Live(page(*shown), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while not stop.wait(interval):
            try:
                now = read_metrics(url)
            except SkimError as error:
                live.update(page(*shown, trouble=f"{error}; these values are old"), refresh=True)
                continue
            shown, before = (figures(before, now), now.at - before.at), now
            live.update(page(*shown), refresh=True)
