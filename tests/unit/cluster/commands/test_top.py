"""`skim top` with Serve's reports and a node that exports recorded metrics."""

import io
import json
import re
import threading

import pytest
from rich.console import Console

from cluster.commands import status, top
from cluster.serve import status as state
from cluster.serve import watch
from cluster.serve.preflight import free_port
from tests.unit.cluster.commands.deployment import part, put
from tests.unit.cluster.top.exporter import FIRST, SECOND, exporting

DOWN = re.sub(r'(ray_skim_router_pool_replicas.*pool="target".*state="running".*) 1.0', r"\1 0.0", SECOND)


@pytest.fixture
def node(served, monkeypatch):
    """Makes the exporter of the only node of the cluster."""
    put(served, router=part("HEALTHY", {"RUNNING": 1}), target=part("HEALTHY", {"RUNNING": 1}))

    def use(*addresses):
        nodes = [{"NodeManagerAddress": host, "MetricsExportPort": int(port), "Alive": True}
                 for host, _, port in (address.partition(":") for address in addresses)]  # fmt: skip
        dead = {"NodeManagerAddress": "10.0.0.9", "MetricsExportPort": 1, "Alive": False}
        monkeypatch.setattr(top.ray, "nodes", lambda: [*nodes, dead])

    return use


def test_one_page_for_scripts(skim, node):
    with exporting(FIRST, SECOND) as address:
        node(address)
        ran = skim("top", "--once", "--json", "--interval", 1)
    assert ran.code == 0, ran.err
    found = json.loads(ran.out)
    assert found["nodes"] == {"answer": [address], "silent": []}
    assert sum(found["values"]["prompts_per_s"].values()) * found["over_s"] == pytest.approx(20)
    assert found["parts"][0]["line"] == "router: healthy (1 running)"
    assert [(alert["name"], alert["state"]) for alert in found["alerts"]] == [("SkimCoverageIsLow", "pending")]


def test_one_page_for_people(skim, node):
    with exporting(FIRST, DOWN) as address:
        node(address)
        ran = skim("top", "--once", "--interval", 1)
    assert ran.code == 0
    assert re.search(r"^target +healthy +1 running +1 ", ran.out, re.MULTILINE)
    assert re.search(r"^pending +The target pool has no replica and does not come back +0 s of 2 min", ran.out, re.M)


def test_a_pool_and_a_node_that_are_down_are_shown(skim, node, served):
    put(served, target=part("UNHEALTHY", {"STARTING": 1}, "A replica's health check failed."))
    nobody = f"127.0.0.1:{free_port()}"
    node(nobody)
    ran = skim("top", "--once", "--interval", 1)
    assert ran.code == 0
    assert "target: unhealthy (0 running, 1 starting): a replica died or hung; another one is starting" in ran.out
    assert f"node {nobody} does not answer" in ran.out
    assert "No router reports the replicas of the pools" in ran.out


def test_where_nothing_runs(skim, served):
    ran = skim("top", "--once")
    assert ran.code == 2
    assert "no deployment of Skim runs on the Ray cluster at auto" in ran.error


def test_json_without_once_is_refused(skim):
    ran = skim("top", "--json")
    assert (ran.code, ran.error) == (2, "skim: --json prints one page: add --once")


def live(monkeypatch, *looks):
    """The live pages of these looks of `watch`, which may be errors, as texts."""
    left, pages, stop = list(looks), [], threading.Event()
    console = Console(width=100, file=io.StringIO(), record=True)
    monkeypatch.setattr(watch.ray, "is_initialized", lambda: True)
    monkeypatch.setattr(watch, "dead_ray_process", lambda: None)

    def look():
        result = left.pop(0)
        if not left:
            stop.set()
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(watch, "current_parts", look)
    watch.watch(stop, top.LivePage(top.Top(0.01), [], pages.append), 0.01)
    for page in pages:
        console.print(page)
    return console.export_text().split("skim top")[1:]


def test_a_page_comes_with_each_look_and_stays_while_the_controller_is_away(monkeypatch, node):
    parts = state.current_parts()
    with exporting(FIRST, SECOND) as address:
        node(address)
        first, second, third = live(monkeypatch, parts, TimeoutError(), parts)
    assert "1.25" in first or "/s: " in first
    assert "Serve: its controller does not answer" in second
    assert re.search(r"^target +healthy", second, re.MULTILINE)
    assert "Serve: " not in third


def test_nodes_stay_known_while_rays_head_is_away(monkeypatch, node):
    with exporting(FIRST, SECOND) as address:
        node(address)
        watched = top.Top(1.0)
        monkeypatch.setattr(top.ray, "nodes", threading.Event().wait)
        monkeypatch.setattr(top, "LIMIT_S", 0.01)
        assert list(watched.next_page([]).nodes) == [address]


def test_status_and_top_ask_in_the_same_way(skim, node, served, monkeypatch):
    answer = threading.Event()
    monkeypatch.setattr(status, "LIMIT_S", 0.01)
    monkeypatch.setattr(state.serve, "status", answer.wait)
    ran = skim("top", "--once")
    answer.set()
    assert ran.code == 2
    assert "Serve's controller on the Ray cluster at auto did not answer in 0.01 s" in ran.error
