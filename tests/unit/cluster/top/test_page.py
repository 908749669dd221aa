"""The page at the widths of terminals, and as JSON."""

import io
import json
import re

import pytest
from rich.console import Console

from cluster.serve.status import Part
from cluster.top.alerts import Alert
from cluster.top.page import Page, page
from cluster.top.quantities import Quantities
from tests.unit.cluster.top.exporter import FIRST, SECOND
from tests.unit.cluster.top.test_quantities import DRAFTS, NODE, OVER_S, history

PARTS = (
    Part("router", True, "router: healthy (1 running)", "", "healthy", "1 running"),
    Part(
        "speculator", False, "speculator: updating (1 running, 1 starting): no model", "no model", "updating",
        "1 running, 1 starting",
    ),
    Part("target", True, "target: healthy (1 running)", "", "healthy", "1 running"),
)  # fmt: skip
DOWN = Alert("SkimPoolIsDown", "critical", "The target pool has no replica", {"pool": "target"}, 0.0, 130.0, 120.0)
SLOW = Alert("SkimFirstTokenIsSlow", "warning", "One prompt in ten waits more than 10 s", {}, 12.5, 30.0, 600.0)


def shown(parts=PARTS, alerts=(), silent=(), lost="", texts=(FIRST, SECOND)):
    texts = [text + DRAFTS.format(n, 2 * n, n, n / 2, 0) for n, text in zip((100, 200), texts, strict=False)]
    found = history(*texts)
    over_s = OVER_S if len(texts) > 1 else None
    values = Quantities(OVER_S).values(found)
    return Page(1.7e9, over_s, parts, lost, [NODE], silent, values, alerts)


def lines(found, width=100):
    console = Console(width=width, file=io.StringIO(), record=True, highlight=False)
    console.print(page(found))
    return [line.rstrip() for line in console.export_text().splitlines()]


def row(name, found, width=120):
    [line] = [line for line in lines(found, width) if line.startswith(name)]
    return line.removeprefix(name).strip()


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_it_fits_the_terminal(width):
    found = lines(shown(alerts=[SLOW, DOWN], silent=("10.0.0.9:8080",)), width)
    assert max(map(len, found)) <= width
    assert len(found) <= 32
    text = "\n".join(found)
    for word in (
        "speculator",
        "updating",
        "1 running, 1 starting",
        "first token",
        "acceptance",
        "The target pool has no",
    ):
        assert word in text
    assert "…" not in text


def test_what_it_says():
    found = shown()
    assert lines(found)[0].endswith("1 node, values of the last 16 s, 22:13:20 UTC")
    assert re.match(r"updating +1 running, 1 starting +2 +0 % +0$", row("speculator ", found))
    assert "speculator: updating (1 running, 1 starting): no model" in lines(found)
    assert row("acceptance", found) == "100 % 50 % by position; 3.00 tokens per verification"
    assert row("prompts", found).startswith("1.25/s: dense ")
    assert row("speculative", found) == "requested 0.438/s"
    assert row("dense", found) == "short-prompt 0.625/s, sooner 0.188/s"
    assert row("queue", found) == "0 prompts wait in the router"
    assert row("shed", found) == "-"
    assert any("no alerts" in line for line in lines(found))


def test_a_pool_a_node_and_a_controller_that_do_not_answer_are_lines_of_the_page():
    found = lines(shown(lost="its controller does not answer; Ray restarts it", silent=("10.0.0.9:8080",)), 120)
    assert "Serve: its controller does not answer; Ray restarts it; the pools above are as they were" in found
    assert "node 10.0.0.9:8080 does not answer: its metrics are missing here" in found


def test_the_page_of_one_scrape_has_no_rates():
    found = shown(texts=(FIRST,))
    assert "rates from the next page on" in lines(found)[0]
    assert (
        row("prompts", found)
        == row("first token", found)
        == row("kept share", found)
        == row("acceptance", found)
        == "-"
    )


def test_alerts_that_fire_come_first_and_a_pending_one_says_for_how_long():
    found = lines(shown(alerts=[SLOW, DOWN]), 120)
    place = next(index for index, line in enumerate(found) if line.startswith("firing"))
    assert found[place : place + 2] == [
        "firing   The target pool has no replica",
        "pending  One prompt in ten waits more than 10 s  30 s of 10 min",
    ]


def test_the_json_is_the_whole_page():
    found = shown(alerts=[SLOW], silent=("10.0.0.9:8080",)).as_json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["at"] == "2023-11-14T22:13:20+00:00"
    assert found["over_s"] == OVER_S
    assert found["nodes"] == {"answer": [NODE], "silent": ["10.0.0.9:8080"]}
    assert found["parts"][1]["reason"] == "no model"
    assert found["alerts"][0]["state"] == "pending"
    assert found["values"]["tokens_per_verification"] == 3.0
