"""`skim bench replay`: the memory of both systems, the rounds over HTTP, and the table by cached share."""

import json
from dataclasses import replace

import pytest

from benchmarks.harness.models import TARGET, bench_pair
from benchmarks.replay.mooncake import read_trace
from benchmarks.replay.replay import ReplaySettings, _capacities, _rounds, run
from benchmarks.replay.results import Replayed, describe, plot, summary, table
from benchmarks.replay.trace import CONVERSATION, within
from benchmarks.report import plots
from benchmarks.report.progress import silent
from evals.report.__main__ import RESULTS
from skim_common.errors import SkimError
from tests.unit.benchmarks.openai_server import openai_server

SETTINGS = ReplaySettings(
    str(CONVERSATION), "", "", requests=30, block_tokens=64, seconds=600, answer_tokens=2, kv_tokens=100_000
)


@pytest.mark.parametrize(("keep_rate", "ratio"), [(0.1, 0.1), (0.2, 0.43), (0.5, 1.0)])
def test_skims_pools_share_the_memory_of_the_stock_server_and_hold_the_same_prompts(keep_rate, ratio):
    held = _capacities(1_000_000, keep_rate, ratio)
    target, speculator = held["target"], held["speculator"]
    assert target + ratio * speculator == pytest.approx(1_000_000, rel=1e-4)
    assert target == pytest.approx(keep_rate * speculator, rel=1e-4)
    assert speculator / 1_000_000 == pytest.approx(1 / (keep_rate + ratio), rel=1e-4)


def replayed(system: str, index: int, number: int, ms: float) -> Replayed:
    return Replayed(system, index, number, ms, prompt_tokens=100, kept_tokens=100, target_cached=0, reason="")


def test_the_result_by_cached_share():
    """Requests 0 and 1 share nothing, request 2 almost everything; Skim needs half of the time, then twice as much."""
    found = []
    for index, slow in ((1, 1.0), (2, 3.0)):
        found += [replayed("stock", index, number, ms * slow) for number, ms in enumerate((100, 300, 10))]
        found += [replayed("skim", index, number, ms * slow) for number, ms in enumerate((50, 150, 20))]
    told = summary(found, [0.0, 0.05, 1.0])
    assert [(b["from"], b["requests"], b["ratio"]["median"]) for b in told["bins"]] == [(0, 2, 0.5), (0.9, 1, 2)]
    assert told["ratio"] == {"median": 220 / 410, "lowest": 220 / 410, "highest": 220 / 410}
    assert told["systems"]["stock"]["p50_ms"] == 200
    assert told["reasons"] == [
        {"reason": "", "requests": 6, "stock_ms": 820 / 3, "skim_ms": 440 / 3, "ratio": 440 / 820}
    ]


def test_table_and_plot_of_the_committed_result(tmp_path):
    result = json.loads((RESULTS / "replay.json").read_text())
    columns, rows = table(result)
    assert all(len(row) == len(columns) for row in rows)
    assert [row[0] for row in rows[:3]] == ["all, mean", "all, median", "all, 99th percentile"]
    assert f"{result['settings']['requests']} requests of the trace" in describe(result)
    plot(result, tmp_path / "replay.png")
    assert plots.source_of(tmp_path / "replay.png") == plots.digest(result)


async def test_the_rounds_of_a_replay_over_http(monkeypatch):
    """Both systems get the same prompts at the same times, a salt per round, and their caches are filled before."""
    monkeypatch.setattr("benchmarks.replay.replay.SETTLE_S", 0)
    requests = within(read_trace(CONVERSATION)[:3], 0.01)
    settings = replace(SETTINGS, rounds=2, block_tokens=16)
    kv_tokens = {"stock": 2048, "target": 1024, "speculator": 4096}
    async with openai_server() as (stock, to_stock), openai_server() as (skim, to_skim):
        found = await _rounds(settings, requests, {"stock": stock, "skim": skim}, kv_tokens, silent)
    assert [(r.system, r.round) for r in found[::3]] == [("stock", 1), ("skim", 1), ("skim", 2), ("stock", 2)]
    assert {(r.kept_tokens, r.target_cached) for r in found if r.system == "skim"} == {(150, 128)}
    filled = [
        sum(len(body["prompt"]) for body in bodies if body["cache_salt"].startswith("fill"))
        for bodies in (to_stock, to_skim)
    ]
    assert filled == [kv_tokens["stock"], kv_tokens["target"] + kv_tokens["speculator"]]
    sent = [[body for body in bodies if body["cache_salt"] == "round-1"] for bodies in (to_stock, to_skim)]
    assert sorted(body["prompt"] for body in sent[0]) == sorted(body["prompt"] for body in sent[1])
    assert len(sent[0]) == 3
    assert "speculative_prefill" not in sent[0][0]
    assert sent[1][0]["speculative_prefill"] == {"keep_rate": 0.2}


def test_a_target_that_could_not_hold_the_longest_prompt_is_refused_before_anything_starts():
    pair = bench_pair(replace(TARGET, layers=1))
    settings = replace(SETTINGS, target=str(pair.target), speculator=str(pair.speculator), kv_tokens=9000)
    with pytest.raises(SkimError, match="raise --kv-tokens"):
        run(settings)
