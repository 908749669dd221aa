"""Evaluates expressions of `promql` over scrapes of the nodes' metrics.

It follows Prometheus except in two things. A rate is the increase between two scrapes, without extrapolation to the
ends of its range. A counter that is new on a node that was read before has begun at 0: Prometheus does not count the
first increment of a series, which for a rare error may be the only one.
"""

import math
import operator
from collections.abc import Callable, Mapping

from cluster.top.promql import Aggregation, Binary, Call, Matching, Node, Number, Selector
from cluster.top.scrapes import NODE, History, Labels, Scrape

Vector = dict[Labels, float]
"""A value for each set of labels, without the metric's name."""

_ARITHMETIC: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": lambda a, b: a / b if b else math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a),
}
_AGGREGATIONS: Mapping[str, Callable[[list[float]], float]] = {
    "sum": sum,
    "max": max,
    "avg": lambda group: sum(group) / len(group),
}
_COMPARISONS: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


def evaluate(node: Node, history: History) -> Vector:
    """The value of an expression now: of the last scrape, and for ranges of the increase up to it."""
    match node:
        case Number():
            return {frozenset(): node.value}
        case Selector():
            return _selected(node, history.last)
        case Aggregation():
            return _aggregate(node, evaluate(node.of, history))
        case Call():
            return _call(node, history)
        case Binary():
            return _binary(node, history)


def _selected(selector: Selector, scrape: Scrape) -> Vector:
    found = scrape.samples.get(selector.metric, {})
    if not selector.matchers:
        return dict(found)
    return {
        labels: value
        for labels, value in found.items()
        if all(matcher.holds(dict(labels)) for matcher in selector.matchers)
    }


def _increase(selector: Selector, history: History) -> tuple[Vector, float]:
    """The increase of each counter in the range, and the seconds between the two scrapes; empty after one scrape."""
    now, before = history.last, history.before(selector.range_s)
    if before is None:
        return {}, 0.0
    earlier = before.samples.get(selector.metric, {})
    grown: Vector = {}
    for labels, value in _selected(selector, now).items():
        if labels in earlier:
            # A smaller count than before has begun again at 0.
            grown[labels] = value - earlier[labels] if value >= earlier[labels] else value
        elif dict(labels).get(NODE) in before.nodes:
            grown[labels] = value
    return grown, now.at - before.at


def _call(call: Call, history: History) -> Vector:
    first = call.arguments[0]
    if call.function in ("rate", "increase"):
        if not isinstance(first, Selector) or not first.range_s:
            raise ValueError(f"{call.function} needs a range of a metric")
        grown, seconds = _increase(first, history)
        return {labels: value / seconds for labels, value in grown.items()} if call.function == "rate" else grown
    if call.function == "histogram_quantile":
        [share] = evaluate(first, history).values()
        return _quantiles(share, evaluate(call.arguments[1], history))
    if call.function == "absent":
        wanted = first.matchers if isinstance(first, Selector) else ()
        absent = frozenset((matcher.label, matcher.text) for matcher in wanted if matcher.sign == "=")
        return {} if evaluate(first, history) else {absent: 1.0}
    return evaluate(first, history)  # vector(number)


def _quantiles(share: float, buckets: Vector) -> Vector:
    """As in Prometheus: linear inside a bucket; in the last bucket its lower bound; NaN without a sample."""
    histograms: dict[Labels, list[tuple[float, float]]] = {}
    for labels, count in buckets.items():
        bound = float(dict(labels)["le"])
        rest = frozenset(label for label in labels if label[0] != "le")
        histograms.setdefault(rest, []).append((bound, count))
    return {labels: _quantile(share, sorted(histogram)) for labels, histogram in histograms.items()}


def _quantile(share: float, histogram: list[tuple[float, float]]) -> float:
    """histogram: (upper bound, cumulative count), by bound."""
    rank = share * histogram[-1][1]
    if not histogram[-1][1] or not math.isinf(histogram[-1][0]) or len(histogram) < 2:
        return math.nan
    index = next(index for index, (_, count) in enumerate(histogram) if count >= rank)
    if index == len(histogram) - 1:
        return histogram[-2][0]
    low, below = histogram[index - 1] if index else (0.0, 0.0)
    high, count = histogram[index]
    return low + (high - low) * (rank - below) / (count - below) if count > below else high


def _aggregate(node: Aggregation, values: Vector) -> Vector:
    groups: dict[Labels, list[float]] = {}
    for labels, value in values.items():
        groups.setdefault(frozenset(label for label in labels if label[0] in node.by), []).append(value)
    return {labels: _AGGREGATIONS[node.function](group) for labels, group in groups.items()}


def _binary(node: Binary, history: History) -> Vector:
    left, right = evaluate(node.left, history), evaluate(node.right, history)
    if node.sign in ("and", "or", "unless"):
        return _set(node, left, right)
    if isinstance(node.left, Number):
        [a] = left.values()
        pairs = {labels: (a, b) for labels, b in right.items()}
    elif isinstance(node.right, Number):
        [b] = right.values()
        pairs = {labels: (a, b) for labels, a in left.items()}
    else:
        pairs = _pairs(node.matching, left, right)
    if node.sign in _COMPARISONS:
        holds = _COMPARISONS[node.sign]
        return {labels: a for labels, (a, b) in pairs.items() if holds(a, b)}
    return {labels: _ARITHMETIC[node.sign](a, b) for labels, (a, b) in pairs.items()}


def _pairs(matching: Matching, left: Vector, right: Vector) -> dict[Labels, tuple[float, float]]:
    """By the labels of the left side, the values of both sides that match. The right side has one value per match."""
    others = {_matched(matching, labels): value for labels, value in right.items()}
    keys = {labels: _matched(matching, labels) for labels in left}
    return {labels: (left[labels], others[key]) for labels, key in keys.items() if key in others}


def _set(node: Binary, left: Vector, right: Vector) -> Vector:
    if node.sign == "or":
        known = {_matched(node.matching, labels) for labels in left}
        return left | {labels: v for labels, v in right.items() if _matched(node.matching, labels) not in known}
    others = {_matched(node.matching, labels) for labels in right}
    wanted = node.sign == "and"
    return {labels: v for labels, v in left.items() if (_matched(node.matching, labels) in others) == wanted}


def _matched(matching: Matching, labels: Labels) -> Labels:
    return frozenset(label for label in labels if (label[0] in matching.labels) == (matching.kind == "on"))
