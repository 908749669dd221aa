"""The part of PromQL that is read."""

import pytest

from cluster.top.promql import (
    Aggregation,
    Binary,
    Call,
    Matcher,
    Matching,
    Number,
    Selector,
    duration_s,
    parse,
    selectors,
)
from cluster.top.quantities import _filled
from tests.unit.cluster.monitoring.test_monitoring import expressions


@pytest.mark.parametrize("expression", expressions())
def test_all_expressions_of_dashboard_and_rules_are_read(expression):
    assert list(selectors(parse(_filled(expression, 10.0, 0.9))))


def test_the_tree_of_an_expression():
    tree = parse('sum by (pool, x) (rate(m_total{pool="a",kind=~"b|c"}[10m])) / on (pool) n > 0.5')
    range_of = Selector("m_total", (Matcher("pool", "=", "a"), Matcher("kind", "=~", "b|c")), 600.0)
    share = Binary(
        "/", Aggregation("sum", ("pool", "x"), Call("rate", (range_of,))), Selector("n"), Matching("on", ("pool",))
    )
    assert tree == Binary(">", share, Number(0.5))


@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ("a + b * c", "a + (b * c)"),
        ("a - b - c", "(a - b) - c"),
        ("a / b > c", "(a / b) > c"),
        ("a > 1 and b or c unless d", "((a > 1) and b) or (c unless d)"),
        ("a == 0 and on (p) b > 0", "(a == 0) and on (p) (b > 0)"),
    ],
)
def test_what_binds_tighter(flat, nested):
    assert parse(flat) == parse(nested)
    assert parse("a - b - c") != parse("a - (b - c)")


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "sum(a",
        "sum(a) by (b)",
        "a offset 5m",
        "a[5m:1m]",
        "rate(a[5])",
        "rate(a[5m]) )",
        "a{b}",
        "a{b=1}",
        "-a",
        "max without (b) (a)",
        "topk(3, a)",
        "a / on (b) group_left (c) d",
        "$quantile",
    ],
)
def test_whatever_else_is_said(expression):
    with pytest.raises(ValueError, match="cannot read the expression"):
        parse(expression)


@pytest.mark.parametrize(
    ("sign", "text", "holds"),
    [
        ("=", "ab", True),
        ("=", "a", False),
        ("!=", "a", True),
        ("=~", "a.*", True),
        ("=~", "a", False),
        ("!~", "b", True),
    ],
)
def test_a_matcher_compares_the_whole_label(sign, text, holds):
    assert Matcher("x", sign, text).holds({"x": "ab"}) is holds
    assert Matcher("x", sign, "").holds({}) is (sign in ("=", "=~"))


def test_durations():
    assert [duration_s(text) for text in ("30s", "1.5m", "6h", "1d")] == [30.0, 90.0, 21600.0, 86400.0]
