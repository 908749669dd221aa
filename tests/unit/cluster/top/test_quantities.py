"""The page's quantities are series of the dashboard; values by two recorded scrapes."""

import json
import re

import pytest

from cluster.kuberay.monitoring import DASHBOARD
from cluster.top import quantities
from cluster.top.quantities import QUANTITIES, Quantities, metrics_of
from cluster.top.scrapes import History, scraped
from tests.unit.cluster.top.exporter import FIRST, SECOND

OVER_S = 16.0
NODE = "127.0.0.1:1"
DRAFTS = """ray_skim_target_rounds_total{{replica="t"}} {0}
ray_skim_target_accepted_total{{replica="t"}} {1}
ray_skim_target_accepted_per_position_total{{position="0",replica="t"}} {2}
ray_skim_target_accepted_per_position_total{{position="1",replica="t"}} {3}
ray_skim_target_drafts_per_position_total{{position="0",replica="t"}} {0}
ray_skim_target_drafts_per_position_total{{position="1",replica="t"}} {0}
ray_skim_router_cached_tokens_total{{mode="speculative"}} {4}
"""
"""Mock engines have neither drafts nor a prefix cache."""


def history(*texts, over_s=OVER_S):
    """The scrapes of one node, `over_s` seconds apart."""
    names = metrics_of(Quantities(over_s).nodes)
    first, *rest = [scraped(index * over_s, {NODE: text}, names) for index, text in enumerate(texts)]
    found = History(first)
    for scrape in rest:
        found.add(scrape)
    return found


def count(text, metric, **labels):
    """The sum of a metric, read without our code."""
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
               if re.match(rf"{metric}\b", line) and all(label in line for label in wanted))  # fmt: skip


def grown(metric, **labels):
    return count(SECOND, metric, **labels) - count(FIRST, metric, **labels)


def test_the_values_of_two_scrapes():
    values = Quantities(OVER_S).values(history(FIRST, SECOND))
    prompts = {mode: grown("ray_skim_router_requests_total", mode=mode) for mode in ("dense", "speculative")}
    assert sum(prompts.values()) == 20
    assert values["prompts_per_s"] == {mode: number / OVER_S for mode, number in prompts.items()}
    assert sum(values["dense_prompts_per_s"].values()) == prompts["dense"] / OVER_S
    kept, read = (grown(f"ray_skim_router_{part}_tokens_total", mode="speculative") for part in ("kept", "prompt"))
    assert values["kept_share"] == pytest.approx(kept / read)
    assert values["kept_share"] < values["kept_share_of_all"] < 1
    assert values["replicas"] == {f"{pool} {state}": number for pool, number in
                                  (("router", 1.0), ("speculator", 2.0), ("target", 1.0))
                                  for state in ("configured", "running")}  # fmt: skip
    assert values["queued"] == 0.0
    assert values["waiting"].keys() == {"router", "speculator", "target"}
    assert 0 < values["first_token_median_s"]["speculative"] <= values["first_token_90_s"]["speculative"] < 5
    assert values["acceptance_by_position"] == {}
    assert values["tokens_per_verification"] is None


def test_drafts_and_the_prefix_cache():
    before, after = DRAFTS.format(1000, 1500, 900, 600, 0), DRAFTS.format(1100, 1640, 980, 660, 50)
    values = Quantities(OVER_S).values(history(FIRST + before, SECOND + after))
    assert values["acceptance_by_position"] == {"0": 0.8, "1": 0.6}
    assert values["tokens_per_verification"] == 1 + 1.4
    assert values["cached_share"] == {
        "speculative": 50 / grown("ray_skim_router_kept_tokens_total", mode="speculative")
    }


def test_quantiles_are_of_the_interval_and_not_since_the_start():
    """Negative control: before the interval, all first tokens took a minute."""
    slow = re.sub(r'(le="60.0".*) [\d.]+$', r"\1 1e9", FIRST, flags=re.MULTILINE)
    slow = re.sub(r'(le="\+Inf".*) [\d.]+$', r"\1 1e9", slow, flags=re.MULTILINE)
    later = re.sub(r'(le="(?:60.0|\+Inf)".*) ([\d.]+)$', lambda m: f"{m[1]} {1e9 + float(m[2])}", SECOND, flags=re.M)
    values = Quantities(OVER_S).values(history(slow, later))
    assert values["first_token_median_s"]["speculative"] < 60


def test_nothing_happened_is_no_number_and_not_0():
    values = Quantities(OVER_S).values(history(SECOND, SECOND))
    assert values["prompts_per_s"] == {"dense": 0.0, "speculative": 0.0}
    assert (values["kept_share"], values["first_token_median_s"]["dense"]) == (None, None)
    json.dumps(values, allow_nan=False)


def test_one_scrape_has_gauges_only():
    values = Quantities(OVER_S).values(history(SECOND))
    assert values["prompts_per_s"] == {}
    assert values["replicas"]["target running"] == 1.0


def test_each_quantity_is_one_series_of_the_dashboard():
    legends = [(panel["title"], target["legendFormat"]) for panel in json.loads(DASHBOARD.read_text())["panels"]
               for target in panel.get("targets", [])]  # fmt: skip
    assert [q.name for q in QUANTITIES if legends.count((q.panel, q.legend)) != 1] == []
    assert len({quantity.name for quantity in QUANTITIES}) == len(QUANTITIES)


def test_the_dashboard_holds_the_only_definition(monkeypatch, tmp_path):
    """Negative control: another expression there is another value here."""
    changed = DASHBOARD.read_text().replace("sum(ray_skim_router_queued)", "7 + sum(ray_skim_router_queued)")
    (tmp_path / "dashboard.json").write_text(changed)
    monkeypatch.setattr(quantities, "DASHBOARD", tmp_path / "dashboard.json")
    assert Quantities(OVER_S).values(history(FIRST, SECOND))["queued"] == 7.0
