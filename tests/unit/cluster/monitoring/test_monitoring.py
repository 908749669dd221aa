"""Alert rules and dashboard use only exported metrics, and each alert fires when it should.

promtool (Debian's package prometheus, or PROMTOOL=/path/to/it) checks the expressions; without it those tests are
skipped.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray.serve
import yaml

from actors.observability.metric_table import METRICS
from cluster.config.load import load_config
from cluster.kuberay.write import DASHBOARD, RULES, alert_rules, dashboard

ROOT = Path(__file__).parents[4]
ALERTS = Path(__file__).with_name("alerts.yaml")

# Metrics of Ray Serve that rules and dashboard use, and the tags that they use.
SERVES_OWN = {
    "serve_deployment_queued_queries": {"deployment"},
    "serve_deployment_replica_healthy": {"deployment"},
    "serve_num_http_error_requests_total": {"error_code"},
    "serve_replica_utilization_percent": {"deployment"},
}
SERIES = re.compile(r"\b((?:ray_serve|skim)_\w+?)(_bucket|_sum|_count)?\b(?:\{([^}]*)\})?")


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def expressions() -> list[str]:
    """All expressions of both files."""
    rules = [rule["expr"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    return rules + [target["expr"] for panel in panels() for target in panel["targets"]]


def unknown(expression: str) -> Iterator[str]:
    """Names in an expression that nothing exports: metrics, suffixes that their kind does not have, tags."""
    known_tags = {"le", *re.findall(r'label_replace\(\w+, "(\w+)"', expression)}
    asked_tags: set[str] = set()
    for found in SERIES.finditer(expression):
        name, suffix, labels = found[1].removeprefix("ray_"), found[2], found[3] or ""
        metric = METRICS.get(name)
        if metric is None and name not in SERVES_OWN:
            yield name
        elif bool(suffix) != bool(metric and metric.kind == "histogram"):
            yield f"{name}{suffix or ''}"
        known_tags |= {*metric.tags, "replica"} if metric else SERVES_OWN.get(name, set())
        asked_tags |= set(re.findall(r"(\w+)\s*(?:=|!)", labels))
    for group in re.findall(r"\b(?:by|on|ignoring) \(([^)]*)\)", expression):
        asked_tags |= {tag.strip() for tag in group.split(",")}
    yield from asked_tags - known_tags


def test_whatever_is_asked_for_is_exported() -> None:
    found = expressions()
    assert len(found) > 25
    assert [name for expression in found for name in unknown(expression)] == []


@pytest.mark.parametrize(
    "typo",
    [
        "rate(skim_target_round_total[5m])",
        "rate(skim_target_rounds_total[5m]) + rate(skim_target_rounds[5m])",
        'label_replace(skim_target_round_total, "pool", "target", "", "")',
        "skim_router_ttft_seconds",
        "skim_target_rounds_total_count",
        'skim_router_requests_total{kind="dense"}',
        "sum by (reasons) (skim_router_requests_total)",
        "ray_serve_replica_utilisation_percent",
    ],
)
def test_a_typo_is_found(typo: str) -> None:
    assert list(unknown(typo))


def test_what_is_asked_of_serve_is_in_its_source() -> None:
    source = "".join(file.read_text() for file in (Path(ray.serve.__file__).parent / "_private").glob("*.py"))
    for name in SERVES_OWN:
        assert name.replace("_http_", "_{protocol_name}_").removesuffix("_total") in source


def test_the_dashboard_shows_what_matters() -> None:
    shown = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    wanted = (
        "requests ttft_seconds kept_tokens coverage audit_agreement catch_ups accepted fallbacks utilization replicas"
    )
    wanted += " refused migrations"
    assert [name for name in wanted.split() if name not in shown] == []
    ids = [panel["id"] for panel in json.loads(DASHBOARD.read_text())["panels"]]
    assert len(set(ids)) == len(ids)


def test_kubernetes_gets_both_files_as_they_are() -> None:
    config = load_config(ROOT / "examples" / "llama-70b-1b.yaml")
    rule, shown = alert_rules(config), dashboard(config)
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert config.kubernetes.monitor_labels.items() <= rule["metadata"]["labels"].items()
    assert json.loads(shown["data"]["skim.json"]) == json.loads(DASHBOARD.read_text())
    assert shown["metadata"]["labels"]["grafana_dashboard"] == "1"


@pytest.fixture(scope="module")
def promtool() -> str:
    found = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not found:
        pytest.skip("promtool is not installed; install prometheus, or set PROMTOOL to its path")
    return found


def run(*command: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)


def test_the_rules_are_prometheus_rules(promtool: str, tmp_path: Path) -> None:
    """The dashboard's expressions are checked too, as recording rules."""
    ran = run(promtool, "check", "rules", RULES)
    assert ran.returncode == 0, ran.stderr
    filled = [e.replace("$__rate_interval", "5m").replace("$quantile", "0.9") for e in expressions()]
    records = [{"record": f"x{i}", "expr": expression} for i, expression in enumerate(filled)]
    file = tmp_path / "dashboard.yaml"
    for extra, code in (([], 0), ([{"record": "x", "expr": "sum(rate(x[5m])"}], 1)):
        file.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": records + extra}]}))
        ran = run(promtool, "check", "rules", file)
        assert ran.returncode == code, ran.stderr


def test_alerts_come_when_they_should(promtool: str, tmp_path: Path) -> None:
    ran = run(promtool, "test", "rules", ALERTS)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    tested = {case["alertname"] for test in yaml.safe_load(ALERTS.read_text())["tests"]
              for case in test["alert_rule_test"] if case["exp_alerts"]}  # fmt: skip
    assert tested == {rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]}


@pytest.mark.parametrize(("right", "wrong"), [("> 0.05", "> 0.5"), ("> 0.05", "> 0"), ("unless on", "and on")])
def test_a_wrong_rule_fails_them(promtool: str, tmp_path: Path, right: str, wrong: str) -> None:
    """Negative control."""
    (tmp_path / "rules.yaml").write_text(RULES.read_text().replace(right, wrong))
    changed = yaml.safe_load(ALERTS.read_text()) | {"rule_files": ["rules.yaml"]}
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(changed))
    assert run(promtool, "test", "rules", tmp_path / "alerts.yaml").returncode != 0
