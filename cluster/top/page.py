"""The page of `skim top`, as text for a terminal of 80 columns or more and as JSON."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from cluster.serve.status import Part
from cluster.top.alerts import Alert
from cluster.top.quantities import Value

COLOURS = {"critical": "bold red", "warning": "yellow"}
NOTHING = "-"


class Page(NamedTuple):
    """What one page shows.

    at: of the last scrape, in seconds since the epoch. over_s: between the two scrapes; None after the first one.
    lost: why `parts` are old; empty if they are not. nodes, silent: exporters that answered and that did not.
    """

    at: float
    over_s: float | None
    parts: Sequence[Part]
    lost: str
    nodes: Sequence[str]
    silent: Sequence[str]
    values: dict[str, Value]
    alerts: Sequence[Alert]

    def as_json(self) -> dict[str, Any]:
        """The same for scripts: times in seconds, shares from 0 to 1, null where there was nothing to measure."""
        return {
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="seconds"),
            "over_s": self.over_s,
            "lost": self.lost,
            "parts": [part._asdict() for part in self.parts],
            "nodes": {"answer": list(self.nodes), "silent": list(self.silent)},
            "values": self.values,
            "alerts": [{**alert._asdict(), "state": alert.state} for alert in self.alerts],
        }

    def number(self, name: str, label: str | None = None) -> float | None:
        """A value, or the part of it with this label."""
        value = self.values[name]
        return value.get(label or "") if isinstance(value, dict) else value

    def parts_of(self, name: str) -> dict[str, float]:
        """The parts of a value that are not 0, the largest first."""
        value = self.values[name]
        found = {label: part for label, part in value.items() if part} if isinstance(value, dict) else {}
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def page(shown: Page) -> RenderableType:
    """The page for a terminal."""
    return Group(_head(shown), _pools(shown), *_troubles(shown), Rule(style="dim"), _traffic(shown), *_alerts(shown))


def _head(shown: Page) -> RenderableType:
    over = "rates from the next page on" if shown.over_s is None else f"values of the last {shown.over_s:.0f} s"
    nodes = f"{len(shown.nodes)} node{'s' * (len(shown.nodes) != 1)}"
    head = Table.grid(expand=True)
    head.add_column()
    head.add_column(justify="right")
    time = datetime.fromtimestamp(shown.at, UTC).strftime("%H:%M:%S UTC")
    head.add_row(Text("skim top", style="bold"), Text(f"{nodes}, {over}, {time}"))
    return head


def _pools(shown: Page) -> RenderableType:
    table = Table(box=None, expand=True, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("pool", min_width=10)
    table.add_column("state")
    table.add_column("replicas", ratio=1)
    for heading in ("wanted", "in use", "waiting"):
        table.add_column(heading, justify="right")
    for part in shown.parts:
        table.add_row(
            part.name,
            Text(part.state, style="green" if part.healthy else "bold red" if part.reason else "yellow"),
            part.replicas,
            _count(shown.number("replicas", f"{part.name} configured")),
            _number(shown.number("utilisation_percent", part.name), "{:.0f} %"),
            _count(shown.number("waiting", part.name)),
        )
    return table


def _troubles(shown: Page) -> list[RenderableType]:
    lines = [part.line for part in shown.parts if part.reason]
    lines += [f"Serve: {shown.lost}; the pools above are as they were"] if shown.lost else []
    lines += [f"node {address} does not answer: its metrics are missing here" for address in shown.silent]
    return [Text(line, style="red") for line in lines]


def _traffic(shown: Page) -> RenderableType:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column()
    rows = {
        "prompts": _modes(shown),
        "speculative": _listed(shown.parts_of("speculative_prompts_per_s")),
        "dense": _listed(shown.parts_of("dense_prompts_per_s")),
        "first token": "; ".join(filter(None, (_first_token(shown, mode) for mode in ("speculative", "dense")))),
        "kept share": _kept(shown),
        "cached share": ", ".join(f"{mode} {_share(part)}" for mode, part in shown.parts_of("cached_share").items()),
        "acceptance": _acceptance(shown),
        "sessions": _count(shown.number("sessions")),
        "queue": f"{_count(shown.number('queued'))} prompts wait in the router",
        "refused": _listed({**shown.parts_of("refused_per_s"), **_missed(shown)}),
        "shed": _listed(shown.parts_of("shed_per_s")),
    }
    for name, text in rows.items():
        table.add_row(name, text or NOTHING)
    return table


def _modes(shown: Page) -> str:
    modes = shown.parts_of("prompts_per_s")
    total = sum(modes.values())
    shares = ", ".join(f"{mode} {_share(rate / total)}" for mode, rate in modes.items())
    return f"{_rate(total)}: {shares}" if modes else ""


def _first_token(shown: Page, mode: str) -> str:
    median, slow = (shown.number(name, mode) for name in ("first_token_median_s", "first_token_90_s"))
    return "" if median is None else f"{mode} {_seconds(median)}, nine of ten in {_seconds(slow)}"


def _kept(shown: Page) -> str:
    speculative, whole, coverage = map(shown.number, ("kept_share", "kept_share_of_all", "coverage_median"))
    if whole is None:
        return ""
    return f"{_share(speculative)} of speculative prompts, {_share(whole)} of all; coverage {_share(coverage)}"


def _acceptance(shown: Page) -> str:
    tokens, found = shown.number("tokens_per_verification"), shown.values["acceptance_by_position"]
    if tokens is None or not isinstance(found, dict):
        return ""
    shares = " ".join(_share(found[position]) for position in sorted(found, key=int))
    return f"{shares} by position; {tokens:.2f} tokens per verification"


def _missed(shown: Page) -> dict[str, float]:
    missed = shown.number("deadlines_missed_per_s")
    return {"deadline missed": missed} if missed else {}


def _alerts(shown: Page) -> list[RenderableType]:
    if not shown.alerts:
        return [Rule("no alerts", style="dim")]
    table = Table.grid(padding=(0, 2, 0, 0))
    for alert in sorted(shown.alerts, key=lambda alert: (alert.state, alert.severity)):
        style = COLOURS.get(alert.severity, "")
        held = f"{_period(alert.held_s)} of {_period(alert.for_s)}" if alert.state == "pending" else ""
        table.add_row(
            Text(alert.state, style=style if alert.state == "firing" else "dim"), Text(alert.summary, style=style), held
        )
    return [Rule("alerts", style="dim"), table]


def _listed(rates: dict[str, float]) -> str:
    return ", ".join(f"{name} {_rate(rate)}" for name, rate in rates.items())


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else form.format(value)


def _count(value: float | None) -> str:
    return _number(value, "{:.0f}")


def _share(value: float | None) -> str:
    return _number(value, "{:.0%}").replace("%", " %")


def _rate(value: float) -> str:
    return f"{value:.3g}/s"


def _seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{1e3 * value:.0f} ms" if value < 1 else f"{value:.1f} s"


def _period(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"
