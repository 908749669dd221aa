"""Reads the part of PromQL that Skim's dashboard and alert rules use, into a tree.

The grammar is Prometheus' (https://prometheus.io/docs/prometheus/latest/querying/operators/) without subqueries,
offsets, `bool`, `group_right`, `without` and unary operators. Whatever it does not know is a ValueError.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

AGGREGATIONS = ("sum", "max", "avg")
FUNCTIONS = ("rate", "increase", "histogram_quantile", "absent", "vector")

# From the loosest to the tightest; all are left-associative.
_LEVELS = (("or",), ("and", "unless"), ("==", "!=", ">", "<", ">=", "<="), ("+", "-"), ("*", "/"))
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_TOKEN = re.compile(
    r"""\s*(?:(?P<name>[a-zA-Z_:][\w:]*)|(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhd])?|(?P<text>"[^"\\]*")
    |(?P<sign>[=!]~|[=!<>]=|[-+*/<>=(){}\[\],]))""",
    re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class Matcher:
    """label: its name. sign: =, !=, =~ or !~."""

    label: str
    sign: str
    text: str

    def holds(self, labels: Mapping[str, str]) -> bool:
        """A label that a series does not have is empty, as in Prometheus."""
        found = labels.get(self.label, "")
        same = bool(re.fullmatch(self.text, found)) if "~" in self.sign else found == self.text
        return same != self.sign.startswith("!")


@dataclass(frozen=True, slots=True)
class Selector:
    """The series of a metric. range_s: for how long, in seconds; 0: their last values."""

    metric: str
    matchers: tuple[Matcher, ...] = ()
    range_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    """A function of FUNCTIONS."""

    function: str
    arguments: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One of AGGREGATIONS over the series that have the same labels `by`."""

    function: str
    by: tuple[str, ...]
    of: "Node"


@dataclass(frozen=True, slots=True)
class Matching:
    """Which labels of both sides must be the same. kind: only these (on), or all but these (ignoring)."""

    kind: Literal["on", "ignoring"] = "ignoring"
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Binary:
    sign: str
    left: "Node"
    right: "Node"
    matching: Matching = field(default_factory=Matching)


Node = Number | Selector | Call | Aggregation | Binary


@cache
def parse(expression: str) -> Node:
    """The tree of `expression`. Raises ValueError if it is not of the part of PromQL that is read here."""
    return _Parser(expression).whole()


def selectors(node: Node) -> Iterator[Selector]:
    """All selectors in a tree."""
    match node:
        case Selector():
            yield node
        case Call():
            for argument in node.arguments:
                yield from selectors(argument)
        case Aggregation():
            yield from selectors(node.of)
        case Binary():
            yield from selectors(node.left)
            yield from selectors(node.right)


def duration_s(text: str) -> float:
    """Seconds of a duration such as 10m."""
    return float(text[:-1]) * _UNITS[text[-1]]


class _Parser:
    """Recursive descent over the tokens. A duration is one token, for example 10m."""

    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = [*_tokens(expression), ("end", "")]
        self._at = 0

    def whole(self) -> Node:
        node = self._binary(0)
        self._expect("end")
        return node

    def _binary(self, level: int) -> Node:
        if level == len(_LEVELS):
            return self._operand()
        left = self._binary(level + 1)
        while (sign := self._tokens[self._at][1]) in _LEVELS[level]:
            self._at += 1
            matching = self._matching()
            left = Binary(sign, left, self._binary(level + 1), matching)
        return left

    def _matching(self) -> Matching:
        kind = self._tokens[self._at][1]
        if kind not in ("on", "ignoring"):
            return Matching()
        self._at += 1
        matching = Matching(kind, self._labels())  # type: ignore[arg-type]
        if self._skip("group_left") and self._labels():
            raise self._wrong("group_left takes no labels here")
        return matching

    def _operand(self) -> Node:
        kind, text = self._take()
        if kind == "number":
            return Number(float(text))
        if text == "(":
            node = self._binary(0)
            self._expect(")")
            return node
        if text in AGGREGATIONS:
            by = self._labels() if self._skip("by") else ()
            self._expect("(")
            of = self._binary(0)
            self._expect(")")
            return Aggregation(text, by, of)
        if text in FUNCTIONS:
            self._expect("(")
            arguments = [self._binary(0)]
            while self._skip(","):
                arguments.append(self._binary(0))
            self._expect(")")
            return Call(text, tuple(arguments))
        if kind != "name":
            raise self._wrong(f"{text or 'its end'} where a value should be")
        return self._selector(text)

    def _selector(self, metric: str) -> Selector:
        matchers: list[Matcher] = []
        if self._skip("{"):
            while not self._skip("}"):
                label, sign, (kind, text) = self._take()[1], self._take()[1], self._take()
                if sign not in ("=", "!=", "=~", "!~") or kind != "text":
                    raise self._wrong(f"the matcher of {label}")
                matchers.append(Matcher(label, sign, text))
                self._skip(",")
        range_s = 0.0
        if self._skip("["):
            kind, text = self._take()
            if kind != "duration":
                raise self._wrong(f"{text} where a duration should be")
            range_s = duration_s(text)
            self._expect("]")
        return Selector(metric, tuple(matchers), range_s)

    def _labels(self) -> tuple[str, ...]:
        self._expect("(")
        labels: list[str] = []
        while not self._skip(")"):
            labels.append(self._take()[1])
            self._skip(",")
        return tuple(labels)

    def _take(self) -> tuple[str, str]:
        if self._at == len(self._tokens):
            raise self._wrong("its end")
        self._at += 1
        return self._tokens[self._at - 1]

    def _skip(self, text: str) -> bool:
        found = self._tokens[self._at : self._at + 1] in ([("sign", text)], [("name", text)])
        self._at += found
        return found

    def _expect(self, text: str) -> None:
        kind, found = self._take()
        if text not in (found, kind):
            raise self._wrong(f"{found or 'its end'} where {text} should be")

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"cannot read the expression {self._expression!r}: {what}")


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    at, text = 0, expression.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ValueError(f"cannot read the expression {expression!r}: from {text[at:].strip()[:20]!r} on")
        at = found.end()
        if found["unit"]:
            yield "duration", found["number"] + found["unit"]
        else:
            kind = str(found.lastgroup)
            yield kind, found[kind].strip('"')
