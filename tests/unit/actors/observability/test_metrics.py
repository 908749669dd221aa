"""The table of metrics agrees with the counts of the pools and with the document."""

from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve import metrics as ray_metrics

from actors.observability.exposition import PROCESS
from actors.observability.metric_table import METRICS, pool_metric
from actors.observability.metrics import PoolCounts, RayMeter, samples
from kv_transfer.draft_channel.client import DraftClient
from speculator_service.drafting.drafter import Counters
from speculator_service.service import RecordCounts
from target_service.drafting.drafted_requests import DraftedRequests
from target_service.drafting.exchange import DraftExchange
from target_service.vllm_backend.kv_connector import TransferCounts
from target_service.vllm_backend.speculation.decode_stats import DecodeCounts
from tests.unit.actors.local_meter import LocalMeter

DOCUMENT = Path(__file__).parents[4] / "docs" / "observability.md"
SPECULATOR = {
    **asdict(Counters()), "sessions": 0, "rollbacks": 0, "rebuilt": 0,
    **asdict(RecordCounts()), "records": 0, "failed_probe": 0,
}  # fmt: skip


def target_counts() -> dict[str, Any]:
    """What target_service.vllm_backend.engine tells of speculation and of transfers, from the classes that count."""
    config = SimpleNamespace(num_speculative_tokens=3)
    counts = {
        **DraftedRequests(3).stats(),
        **DraftExchange(lambda address: DraftClient(address), 20).stats(),
        **DecodeCounts(config).counts(),
        **TransferCounts(config).counts(),
        "failed_probe": 0,
    }
    counts["fallbacks"] |= {name: counts.pop(name) for name in ("no_session", "no_draft")}
    counts["channel"] = DraftClient("here:1").counters
    return counts


@pytest.mark.parametrize(("pool", "counts"), [("speculator", SPECULATOR), ("target", target_counts())])
def test_every_count_of_a_pool_is_in_the_table_and_the_other_way_round(pool: str, counts: dict[str, Any]) -> None:
    told = {metric.name for metric, _, _ in samples(pool, counts)}
    assert len(told) == len(counts), "a count without a metric"
    mock_only = {f"skim_{pool}_{name}" for name in ("started_total", "aborted_total", "running")}
    assert told == {name for name in METRICS if name.startswith(f"skim_{pool}_")} - mock_only


def test_the_documents_table_is_the_codes() -> None:
    told = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `skim_")]
    tags = {name: "".join(f" `{tag}`," for tag in metric.tags)[:-1] for name, metric in METRICS.items()}
    assert sorted(told) == sorted(f"| `{m.name}` | {m.kind} |{tags[m.name]} | {m.text} |" for m in METRICS.values())


def test_names_follow_the_scheme() -> None:
    for name, metric in METRICS.items():
        assert name.startswith(("skim_router_", "skim_speculator_", "skim_target_"))
        assert name.endswith("_total") == (metric.kind == "counter")
        assert bool(metric.buckets) == (metric.kind == "histogram")


def test_a_count_becomes_samples_with_tags() -> None:
    counts = {"rounds": 3, "fallbacks": {"timeout": 1}, "accepted_per_position": [5, 2], "no such count": 7}
    assert [(metric.name, tags, value) for metric, tags, value in samples("target", counts)] == [
        ("skim_target_rounds_total", {}, 3.0),
        ("skim_target_fallbacks_total", {"reason": "timeout"}, 1.0),
        ("skim_target_accepted_per_position_total", {"position": "0"}, 5.0),
        ("skim_target_accepted_per_position_total", {"position": "1"}, 2.0),
    ]


def test_counters_get_what_came_since_and_gauges_what_is() -> None:
    meter = LocalMeter()
    counts = PoolCounts("target", meter)
    for rounds, accepted, acceptance in ((3, [5, 2], 0.5), (10, [6, 2], 0.25)):
        counts.record({"rounds": rounds, "accepted_per_position": accepted, "acceptance": acceptance})
    assert [value for value, _ in meter.recorded["skim_target_rounds_total"]] == [3, 7]
    assert [value for value, _ in meter.recorded["skim_target_accepted_per_position_total"]] == [5, 2, 1, 0]
    assert [value for value, _ in meter.recorded["skim_target_acceptance"]] == [0.5, 0.25]


def test_each_metric_is_an_instrument_of_rays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's classes check names, tags and buckets. Without a running Ray, recording has no effect."""
    recorded = []

    def remember(self: Any, value: float, tags: dict[str, str]) -> None:
        recorded.append((type(self), self, value, tags))

    monkeypatch.setattr(ray_metrics.metrics.Metric, "_record", remember)
    meter = RayMeter()
    for name, metric in METRICS.items():
        tags = dict.fromkeys(metric.tags, "x")
        sample = f"{name}_sum" if metric.kind == "histogram" else name
        shown = 0.0 if metric.kind == "gauge" else PROCESS.get_sample_value(sample, tags) or 0.0
        meter.record(name, 0.5, **tags)
        cls, instrument, value, seen = recorded[-1]
        assert (cls.__name__.lower(), instrument.info["name"], value, seen) == (metric.kind, name, 0.5, tags)
        instrument._validate_tags(seen)
        assert PROCESS.get_sample_value(sample, tags) == shown + 0.5, "the endpoint's /metrics shows it, too"
    before = len(recorded)
    meter.record("skim_target_rounds_total", 0)
    assert len(recorded) == before, "Ray refuses an increment of nothing"


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(KeyError):
        RayMeter().record("skim_router_nothing", 1)
    assert pool_metric("target", "nothing") is None
