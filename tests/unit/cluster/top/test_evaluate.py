"""Values of expressions, by hand; of whole rules, by promtool's own cases (`test_alerts`)."""

import math

import pytest

from cluster.top.evaluate import evaluate
from cluster.top.promql import parse
from cluster.top.scrapes import NODE, History, Scrape
from tests.unit.cluster.top.series import history, scrape, values

SERIES = {
    'm_total{mode="a", kind="x"}': "0+60x10",
    'm_total{mode="a", kind="y"}': "0+30x10",
    'm_total{mode="b", kind="x"}': "0+10x10",
    'n_total{mode="a"}': "0+180x10",
    'size{pool="p"}': "3x10",
    'size{pool="q"}': "0x10",
    't_bucket{le="1"}': "0+6x10",
    't_bucket{le="2"}': "0+8x10",
    't_bucket{le="+Inf"}': "0+10x10",
}


def shown(expression, of=None):
    """The value of an expression by its labels, as text without the node."""
    found = evaluate(parse(expression), of or history(SERIES, 10))
    return {
        ",".join(f"{name}={text}" for name, text in sorted(labels) if name != NODE): value
        for labels, value in found.items()
    }


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sum by (mode) (rate(m_total[5m]))", {"mode=a": 1.5, "mode=b": 10 / 60}),
        ("sum(increase(m_total[5m]))", {"": 500.0}),
        ('sum(increase(m_total{kind!="x"}[5m]))', {"": 150.0}),
        ("sum by (mode) (rate(m_total[5m])) / sum by (mode) (rate(n_total[5m]))", {"mode=a": 0.5}),
        ("sum by (mode, kind) (m_total) / ignoring (mode, kind) group_left () sum(m_total)",
         {"kind=x,mode=a": 0.6, "kind=y,mode=a": 0.3, "kind=x,mode=b": 0.1}),
        ("max(size)", {"": 3.0}),
        ("avg(size)", {"": 1.5}),
        ("sum by (pool) (size) > 0", {"pool=p": 3.0}),
        ("1 + sum(size) * 2", {"": 7.0}),
        ("sum by (pool) (size) == 0 and on (pool) sum by (pool) (size) < 1", {"pool=q": 0.0}),
        ("sum by (pool) (size) unless on (pool) (sum by (pool) (size) > 0)", {"pool=q": 0.0}),
        ("sum by (pool) (size) > 9 or vector(4)", {"": 4.0}),
        ("sum by (pool) (size) or sum by (pool) (size) + 1", {"pool=p": 3.0, "pool=q": 0.0}),
        ('absent(size{pool="z", node!="y"})', {"pool=z": 1.0}),
        ("absent(size)", {}),
        ("histogram_quantile(0.5, sum by (le) (rate(t_bucket[5m])))", {"": 5 / 6}),
        ("histogram_quantile(0.7, sum by (le) (rate(t_bucket[5m])))", {"": 1.5}),
        ("histogram_quantile(0.9, sum by (le) (rate(t_bucket[5m])))", {"": 2.0}),
        ("sum(nobody_total)", {}),
    ],
)  # fmt: skip
def test_values(expression, value):
    assert shown(expression) == pytest.approx(value)


def test_without_a_sample_a_quantile_and_a_share_are_no_number():
    still = history(dict.fromkeys(SERIES, "5x10"), 10)
    [quantile] = shown("histogram_quantile(0.5, sum by (le) (rate(t_bucket[5m])))", still).values()
    [share] = shown("sum(rate(m_total[5m])) / sum(rate(n_total[5m]))", still).values()
    assert math.isnan(quantile)
    assert math.isnan(share)
    assert shown("sum(rate(m_total[5m])) / sum(rate(n_total[5m])) > 0", still) == {}


def test_a_range_reaches_back_no_further_than_it_says():
    """Negative control of the ranges: the same series, over another time."""
    burst = history({"m_total": "0x5 100x5"}, 10)
    assert shown("increase(m_total[2m])", burst) == {"": 0.0}
    assert shown("increase(m_total[5m])", burst) == {"": 100.0}


def test_one_scrape_has_no_rates():
    assert shown("sum(rate(m_total[5m]))", history(SERIES, 0)) == {}
    assert shown("sum(size)", history(SERIES, 0)) == {"": 3.0}


def test_a_count_that_begins_again_has_grown_by_what_it_is():
    assert shown("increase(m_total[1m])", history({"m_total": "90 7"}, 1)) == {"": 7.0}


@pytest.mark.parametrize(("nodes", "grown"), [(("a:1",), {"": 4.0}), ((), {})])
def test_a_new_count_has_begun_at_0_if_its_node_was_read_before(nodes, grown):
    """A node that did not answer before may have counted for days."""
    found = History(Scrape(0.0, {}, nodes))
    found.add(scrape({"m_total": values("0 4")}, 1))
    assert shown("increase(m_total[1m])", found) == grown


def test_a_rate_of_no_range_is_said():
    with pytest.raises(ValueError, match="rate needs a range"):
        shown("rate(m_total)")
