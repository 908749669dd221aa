"""Reading the nodes' exporters."""

from cluster.serve.preflight import free_port
from cluster.top.scrapes import MOST_SCRAPES, NODE, History, Scrape, scrape, scraped
from tests.unit.cluster.top.exporter import FIRST, exporting

TEXT = '# TYPE a_total counter\na_total{x="1"} 2.0\na_total{x="\\"}"} 3\nb 4\nab 5\na_total_more{x="1"} 6\n'


def test_only_what_is_asked_for_is_kept_with_its_node():
    found = scraped(7.0, {"n:1": TEXT, "m:2": TEXT, "gone:3": None}, {"a_total", "b", "c"})
    assert found.samples == {
        "a_total": {frozenset({("x", x), (NODE, node)}): value
                    for x, value in (("1", 2.0), ('"}', 3.0)) for node in ("n:1", "m:2")},
        "b": {frozenset({(NODE, node)}): 4.0 for node in ("n:1", "m:2")},
        "c": {},
    }  # fmt: skip
    assert (found.at, found.nodes, found.silent) == (7.0, {"n:1", "m:2"}, ("gone:3",))


def test_nodes_that_do_not_answer_are_named():
    nobody = f"127.0.0.1:{free_port()}"
    with exporting(FIRST) as node, exporting(FIRST, code=500) as broken:
        found = scrape([nobody, node, broken], {"ray_skim_router_requests_total"})
    assert found.nodes == {node}
    assert found.silent == tuple(sorted([nobody, broken]))
    assert found.samples["ray_skim_router_requests_total"]


def test_a_cluster_without_nodes_has_no_samples():
    assert scrape([], {"a"}).samples == {"a": {}}


def test_before_is_the_newest_scrape_that_is_old_enough_else_the_oldest():
    history = History(Scrape(0.0))
    assert history.before(1.0) is None
    for at in (10.0, 20.0, 30.5):
        history.add(Scrape(at))
    assert [history.before(range_s).at for range_s in (5.0, 10.5, 20.0, 30.0, 999.0)] == [20.0, 20.0, 10.0, 0.0, 0.0]


def test_a_long_history_keeps_its_beginning_and_its_end():
    history = History(Scrape(0.0))
    for at in range(1, 20 * MOST_SCRAPES):
        history.add(Scrape(float(at)))
    kept = [history.before(float(range_s)).at for range_s in range(1, 20 * MOST_SCRAPES)]
    last = 20.0 * MOST_SCRAPES - 1
    assert (kept[0], kept[-1], history.last.at) == (last - 1, 0.0, last)
    assert len(set(kept)) <= MOST_SCRAPES
