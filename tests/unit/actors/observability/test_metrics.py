"""The table of metrics agrees with the counts of the pools and with the document."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.observability.exposition import exposed
from actors.observability.metric_table import METRICS, pool_metric
from actors.observability.metrics import PROCESS, ProcessMeter, pool_families
from kv_transfer.draft_channel import DraftClient
from speculator_service import drafting, service
from target_service.drafting.exchange import DraftExchange
from target_service.drafting.requests import DraftedRequests
from target_service.vllm_backend.outputs import EngineCounts

DOCUMENT = Path(__file__).parents[4] / "docs" / "observability.md"
SPECULATOR = {
    **dict.fromkeys(drafting.COUNTS + service.COUNTS, 0), "sessions": 0, "rollbacks": 0, "rebuilt": 0,
    "records": 0, "failed_probe": 0,
}  # fmt: skip


def target_counts() -> dict[str, Any]:
    """What target_service.vllm_backend.engine tells of speculation and of transfers, from the classes that count."""
    config = SimpleNamespace(num_speculative_tokens=3)
    counts = {
        **DraftedRequests(3).stats(),
        **DraftExchange(lambda address: DraftClient(address), 20).stats(),
        **EngineCounts(config).decode,
        **EngineCounts(config).transfer,
        "failed_probe": 0,
    }
    counts["fallbacks"] |= {name: counts.pop(name) for name in ("no_session", "no_draft")}
    counts["channel"] = DraftClient("here:1").counters
    return counts


def samples(pool: str, counts: dict[str, Any]) -> list[tuple[str, dict[str, str], float]]:
    return [(s.name, s.labels, s.value) for family in pool_families(pool, counts) for s in family.samples]


@pytest.mark.parametrize(("pool", "counts"), [("speculator", SPECULATOR), ("target", target_counts())])
def test_every_count_of_a_pool_is_in_the_table_and_the_other_way_round(pool: str, counts: dict[str, Any]) -> None:
    told = {family.documentation for family in pool_families(pool, counts)}
    assert len(told) == len(counts), "a count without a metric"
    assert told == {metric.text for name, metric in METRICS.items() if name.startswith(f"skim_{pool}_")}


def test_the_documents_table_is_the_codes() -> None:
    told = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `skim_")]
    tags = {name: "".join(f" `{tag}`," for tag in metric.tags)[:-1] for name, metric in METRICS.items()}
    assert sorted(told) == sorted(f"| `{m.name}` | {m.kind} |{tags[m.name]} | {m.text} |" for m in METRICS.values())


def test_names_follow_the_scheme() -> None:
    for name, metric in METRICS.items():
        assert name.startswith(("skim_router_", "skim_speculator_", "skim_target_"))
        assert not (metric.buckets and name.endswith("_total"))


def test_a_count_becomes_samples_with_tags() -> None:
    counts = {"rounds": 3, "fallbacks": {"timeout": 1}, "accepted_per_position": [5, 2], "no such count": 7}
    assert samples("target", counts) == [
        ("skim_target_rounds_total", {}, 3.0),
        ("skim_target_fallbacks_total", {"reason": "timeout"}, 1.0),
        ("skim_target_accepted_per_position_total", {"position": "0"}, 5.0),
        ("skim_target_accepted_per_position_total", {"position": "1"}, 2.0),
    ]


def test_the_text_of_a_pools_counts_is_prometheus_own() -> None:
    text = exposed(pool_families("target", {"rounds": 3, "acceptance": 0.5}))
    assert "# TYPE skim_target_rounds_total counter\nskim_target_rounds_total 3.0\n" in text
    assert "# TYPE skim_target_acceptance gauge\nskim_target_acceptance 0.5\n" in text


def test_each_metric_is_recorded_for_the_endpoint() -> None:
    meter = ProcessMeter()
    for name, metric in METRICS.items():
        tags = dict.fromkeys(metric.tags, "x")
        sample = f"{name}_sum" if metric.kind == "histogram" else name
        shown = 0.0 if metric.kind == "gauge" else PROCESS.get_sample_value(sample, tags) or 0.0
        meter.record(name, 0.5, **tags)
        assert PROCESS.get_sample_value(sample, tags) == shown + 0.5


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(KeyError):
        ProcessMeter().record("skim_router_nothing", 1)
    assert pool_metric("target", "nothing") is None
