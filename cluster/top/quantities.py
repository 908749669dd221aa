"""The quantities of the page: each is a series of a panel of the dashboard, and its expression stands only there."""

import json
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from cluster.kuberay.monitoring import DASHBOARD
from cluster.top.evaluate import Vector, evaluate
from cluster.top.promql import Node, parse, selectors
from cluster.top.scrapes import History

Value = float | None | dict[str, float | None]
"""None: there was nothing to compute it from. A mapping where the series has labels, by their values."""


class Quantity(NamedTuple):
    """panel, legend: the title of a panel and the legend of one of its series. quantile: for panels that let choose."""

    name: str
    panel: str
    legend: str
    quantile: float = 0.5


QUANTITIES = (
    Quantity("prompts_per_s", "Prompts by mode", "{{mode}}"),
    Quantity("dense_prompts_per_s", "Dense prompts by reason", "{{reason}}"),
    Quantity("speculative_prompts_per_s", "Speculative prompts by reason", "{{reason}}"),
    Quantity("first_token_median_s", "Total by mode", "{{mode}}", 0.5),
    Quantity("first_token_90_s", "Total by mode", "{{mode}}", 0.9),
    Quantity("kept_share", "Keep rate", "speculative prompts"),
    Quantity("kept_share_of_all", "Keep rate", "all prompts"),
    Quantity("coverage_median", "Coverage", "median"),
    Quantity("cached_share", "Prefix cache of the target", "{{mode}}"),
    Quantity("acceptance_by_position", "Acceptance by position", "{{position}}"),
    Quantity("tokens_per_verification", "Tokens per verification", "tokens"),
    Quantity("sessions", "Sessions", "sessions"),
    Quantity("queued", "Prompts that wait in the router", "queued"),
    Quantity("refused_per_s", "Refused and late requests", "refused: {{reason}}"),
    Quantity("deadlines_missed_per_s", "Refused and late requests", "deadline missed"),
    Quantity("shed_per_s", "Shed", "{{kind}}"),
    Quantity("replicas", "Replicas, configured and running", "{{pool}} {{state}}"),
    Quantity("utilisation_percent", "Utilisation", "{{deployment}}"),
    Quantity("waiting", "Waiting for a replica", "{{deployment}}"),
)


class Quantities:
    """QUANTITIES, with rates over `range_s` seconds."""

    def __init__(self, range_s: float) -> None:
        panels = {panel["title"]: panel for panel in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]}
        self._nodes = {
            quantity: parse(_filled(_expression(panels[quantity.panel], quantity.legend), range_s, quantity.quantile))
            for quantity in QUANTITIES
        }

    @property
    def nodes(self) -> Iterator[Node]:
        yield from self._nodes.values()

    def values(self, history: History) -> dict[str, Value]:
        """The values now, by the name of the quantity."""
        return {
            quantity.name: _value(quantity.legend, evaluate(node, history)) for quantity, node in self._nodes.items()
        }


def metrics_of(nodes: Iterable[Node]) -> set[str]:
    """The names of all metrics in these expressions."""
    return {selector.metric for node in nodes for selector in selectors(node)}


def _expression(panel: dict[str, Any], legend: str) -> str:
    [expression] = [target["expr"] for target in panel["targets"] if target["legendFormat"] == legend]
    return str(expression)


def _filled(expression: str, range_s: float, quantile: float) -> str:
    """The expression with values for the dashboard's variables."""
    return expression.replace("$__rate_interval", f"{range_s}s").replace("$quantile", f"{quantile}")


def _value(legend: str, vector: Vector) -> Value:
    labels = re.findall(r"\{\{(\w+)\}\}", legend)
    found = {" ".join(dict(of).get(label, "") for label in labels): _number(value) for of, value in vector.items()}
    return dict(sorted(found.items())) if labels else next(iter(found.values()), None)


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
