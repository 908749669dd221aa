"""The rules give the alerts that Prometheus gives: promtool's own cases, which `tests/unit/cluster/monitoring` runs."""

import re

import pytest
import yaml

from cluster.top import alerts
from cluster.top.alerts import Alerts
from cluster.top.scrapes import History
from tests.unit.cluster.monitoring.test_monitoring import ALERTS, RULES
from tests.unit.cluster.top.series import scrape, values

CASES = yaml.load(ALERTS.read_text(), yaml.BaseLoader)["tests"]
"""With texts only: as a number, `0x30` would be hexadecimal."""


def firing(case, until):
    """The alerts that fire at minute `until`, after a look each minute, without their numbers."""
    series = {item["series"]: values(item["values"]) for item in case["input_series"]}
    history, watched = History(scrape(series, 0)), Alerts()
    found = watched.look(history)
    for minute in range(1, until + 1):
        history.add(scrape(series, minute))
        found = watched.look(history)
    return [alert for alert in found if alert.state == "firing"]


def minutes(text):
    return int(text[:-1]) * {"m": 1, "h": 60}[text[-1]]


def answers(case):
    """Whether the alerts of a case are those that it expects."""
    for wanted in case["alert_rule_test"]:
        found = [
            (alert.labels | {"severity": alert.severity}, alert.summary)
            for alert in firing(case, minutes(wanted["eval_time"]))
            if alert.name == wanted["alertname"]
        ]
        expected = [(alert["exp_labels"], alert["exp_annotations"]["summary"]) for alert in wanted["exp_alerts"]]
        if sorted(found, key=str) != sorted(expected, key=str):
            return False
    return True


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_alerts_come_when_prometheus_has_them(case):
    assert answers(case)


@pytest.mark.parametrize(("right", "wrong"), [("> 0.05", "> 0.5"), ("unless on", "and on"), ("for: 10m", "for: 6h")])
def test_a_wrong_rule_fails_them(monkeypatch, tmp_path, right, wrong):
    """Negative control."""
    (tmp_path / "rules.yaml").write_text(RULES.read_text().replace(right, wrong))
    monkeypatch.setattr(alerts, "RULES", tmp_path / "rules.yaml")
    assert not all(answers(case) for case in CASES)


def test_an_alert_is_pending_until_it_has_held_for_its_time():
    down = {f'ray_skim_router_pool_replicas{{pool="target", state="{state}"}}': n for state, n in
            (("running", "0x9"), ("configured", "2x9"))}  # fmt: skip
    series, watched = {name: values(text) for name, text in down.items()}, Alerts()
    seen = []
    history = History(scrape(series, 0))
    for minute in range(1, 4):
        seen += [(a.name, a.state, a.held_s) for a in watched.look(history) if a.name == "SkimPoolIsDown"]
        history.add(scrape(series, minute))
    assert seen == [("SkimPoolIsDown", state, held) for state, held in
                    (("pending", 0.0), ("pending", 60.0), ("firing", 120.0))]  # fmt: skip


def test_no_summary_keeps_a_template():
    """`skim top` fills in labels only."""
    summaries = [rule["annotations"]["summary"] for group in yaml.safe_load(RULES.read_text())["groups"]
                 for rule in group["rules"]]  # fmt: skip
    assert [text for text in summaries if "{{" in re.sub(r"\{\{ \$labels\.\w+ \}\}", "", text)] == []
