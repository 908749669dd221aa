"""The alert rules of `cluster/monitoring/rules.yaml`, watched without a Prometheus server."""

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import yaml

from cluster.kuberay.monitoring import RULES
from cluster.top.evaluate import evaluate
from cluster.top.promql import Node, duration_s, parse
from cluster.top.scrapes import History, Labels


class Alert(NamedTuple):
    """A rule whose expression holds, in Prometheus' words: pending until it has held for `for_s`, then firing.

    value: of its expression; None if that is no number. held_s: for how long it has been seen to hold.
    """

    name: str
    severity: str
    summary: str
    labels: dict[str, str]
    value: float | None
    held_s: float
    for_s: float

    @property
    def state(self) -> str:
        return "firing" if self.held_s >= self.for_s else "pending"


class _Rule(NamedTuple):
    name: str
    expression: Node
    for_s: float
    severity: str
    summary: str


class Alerts:
    """Evaluates the rules. A range that is longer than the known scrapes is as long as they are."""

    def __init__(self) -> None:
        groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
        self._rules = [
            _Rule(
                rule["alert"],
                parse(rule["expr"]),
                duration_s(rule.get("for", "0s")),
                rule["labels"]["severity"],
                rule["annotations"]["summary"],
            )
            for group in groups
            for rule in group["rules"]
        ]
        self._since: dict[tuple[str, Labels], float] = {}

    @property
    def nodes(self) -> Iterator[Node]:
        yield from (rule.expression for rule in self._rules)

    def look(self, history: History) -> list[Alert]:
        """The rules that hold now, in the file's order. To be called after each scrape."""
        now, since, found = history.last.at, dict[tuple[str, Labels], float](), list[Alert]()
        for rule in self._rules:
            for labels, value in evaluate(rule.expression, history).items():
                key = rule.name, labels
                since[key] = self._since.get(key, now)
                named = dict(sorted(labels))
                number = value if math.isfinite(value) else None
                summary = re.sub(r"\{\{ \$labels\.(\w+) \}\}", lambda label: named.get(label[1], ""), rule.summary)  # noqa: B023  used at once
                found.append(Alert(rule.name, rule.severity, summary, named, number, now - since[key], rule.for_s))
        self._since = since
        return found
