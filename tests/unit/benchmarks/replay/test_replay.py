"""`skim bench replay`: the simulation, the memory of both systems, the curves, and the table by cached share."""

import json
import random
from dataclasses import replace
from itertools import pairwise

import pytest

from benchmarks.harness.models import TARGET, bench_pair
from benchmarks.replay import simulation as replay_simulation
from benchmarks.replay.cost_profiles import LLAMA_8B, LLAMA_70B, PROFILES, tokens_held
from benchmarks.replay.memory_curve import curves, hit_share
from benchmarks.replay.mooncake import read_trace
from benchmarks.replay.replay import ReplaySettings, _rounds, run
from benchmarks.replay.results import Replayed, describe, plot, summary, table
from benchmarks.replay.trace import CONVERSATION, shared_tokens, within
from benchmarks.report import plots
from benchmarks.report.progress import silent
from evals.report.__main__ import details
from skim_common.errors import SkimError
from tests.unit.benchmarks.openai_server import openai_server

SETTINGS = ReplaySettings(
    str(CONVERSATION), "mock", requests=30, block_tokens=64, seconds=600, answer_tokens=2, kv_tokens=100_000
)


@pytest.fixture(scope="module")
def simulated() -> dict:
    return run(SETTINGS) | {
        "command": "skim bench replay",
        "machine": {"usable_cores": 2, "machine": "x86_64", "gpu": None},
    }


def test_costs_follow_from_sizes():
    assert (LLAMA_70B.kv_bytes, LLAMA_8B.kv_bytes) == (327_680, 131_072)
    assert LLAMA_70B.ms_per_token(8) == pytest.approx(2 * 70.6e9 / (8 * 989e12 * 0.5) * 1e3)
    assert PROFILES["70b+1b"].ratio == pytest.approx(0.1)
    assert PROFILES["70b+8b"].kv_bytes == pytest.approx(8 * 72e9 - 2 * 78.6e9)


@pytest.mark.parametrize(("keep_rate", "ratio"), [(0.1, 0.1), (0.2, 0.43), (0.5, 1.0)])
def test_skims_pools_share_the_memory_of_the_stock_server_and_hold_the_same_prompts(keep_rate, ratio):
    target, speculator = tokens_held(1_000_000, keep_rate, ratio)
    assert target + ratio * speculator == pytest.approx(1_000_000, rel=1e-4)
    assert target == pytest.approx(keep_rate * speculator, rel=1e-4)
    assert speculator / 1_000_000 == pytest.approx(1 / (keep_rate + ratio), rel=1e-4)


def test_a_larger_cache_holds_a_larger_share_up_to_all_of_the_sharing():
    trace = read_trace(CONVERSATION)[:100]
    shares = [hit_share(trace, tokens) for tokens in (0, 50_000, 500_000, 10**8)]
    assert shares[0] == 0
    assert all(a <= b for a, b in pairwise(shares))
    assert shares[-1] == pytest.approx(sum(shared_tokens(trace)) / sum(r.prompt_tokens for r in trace))


def test_skims_curve_is_that_of_a_stock_server_with_more_memory():
    trace = read_trace(CONVERSATION)[:100]
    stock, *skim = curves(trace, (50_000, 200_000))
    assert stock["gigabytes"] == pytest.approx([50_000 * 327_680 / 1e9, 200_000 * 327_680 / 1e9])
    for curve in skim:
        assert curve["shares"] == [hit_share(trace, int(t * curve["factor"])) for t in (50_000, 200_000)]
        assert all(more >= less for more, less in zip(curve["shares"], stock["shares"], strict=True))


def test_the_simulation_asks_both_systems_every_request(simulated):
    number = simulated["settings"]["requests"]
    assert number >= 30
    assert sum(found["requests"] for found in simulated["reasons"]) == number
    assert sum(found["requests"] for found in simulated["bins"]) == number
    stock, skim = simulated["systems"]["stock"], simulated["systems"]["skim"]
    assert stock["kept_tokens"] == stock["prompt_tokens"] == skim["prompt_tokens"] > skim["kept_tokens"]
    assert stock["target_cached"] > 0
    assert simulated["kv_tokens"]["target"] < simulated["kv_tokens"]["stock"] < simulated["kv_tokens"]["speculator"]


def test_a_simulation_is_reproducible(simulated):
    again = run(SETTINGS)
    assert again["systems"]["stock"] == simulated["systems"]["stock"]
    assert again["bins"] == simulated["bins"]


def test_without_memory_nothing_is_cached(simulated):
    bare = run(replace(SETTINGS, kv_tokens=8))
    assert bare["systems"]["stock"]["target_cached"] == 0
    assert bare["systems"]["stock"]["mean_ms"] > simulated["systems"]["stock"]["mean_ms"]


def test_several_replicas_find_their_caches_by_affinity(simulated, monkeypatch):
    """Negative control: replicas that are chosen at random."""
    several = replace(SETTINGS, replicas=8)
    found = run(several)["systems"]
    choose = random.Random(1)

    def at_random(key, loads, most):
        return choose.sample(list(loads), len(loads)), []

    monkeypatch.setattr(replay_simulation, "preferred", at_random)
    apart = run(several)["systems"]
    for system, one in simulated["systems"].items():
        assert found[system]["target_cached"] > 0.8 * one["target_cached"], system
        assert apart[system]["target_cached"] < 0.5 * one["target_cached"], system


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


def test_table_page_and_plot(simulated, tmp_path):
    columns, rows = table(simulated)
    assert all(len(row) == len(columns) for row in rows)
    assert [row[0] for row in rows[:3]] == ["all, mean", "all, median", "all, 99th percentile"]
    assert "A simulation in virtual time" in describe(simulated)
    (tmp_path / "replay-mock.json").write_text(json.dumps(simulated))
    assert "## Replay of a trace" in details("Traces and simulations", tmp_path)
    plot(simulated, tmp_path / "replay.png")
    assert plots.source_of(tmp_path / "replay.png") == plots.digest(simulated)


async def test_the_rounds_of_a_replay_over_http(monkeypatch):
    """Both systems get the same prompts at the same times, a salt per round, and their caches are filled before."""
    monkeypatch.setattr("benchmarks.replay.replay.SETTLE_S", 0)
    requests = within(read_trace(CONVERSATION)[:3], 0.01)
    settings = replace(SETTINGS, engine="vllm", rounds=2, block_tokens=16)
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
    assert sent[1][0]["speculative_prefill"] == {"keep_rate": 0.2, "score_queries": "look_ahead"}


def test_a_target_that_could_not_hold_the_longest_prompt_is_refused_before_anything_starts():
    pair = bench_pair(replace(TARGET, layers=1))
    settings = replace(
        SETTINGS, engine="vllm", target=str(pair.target), speculator=str(pair.speculator), kv_tokens=9000
    )
    with pytest.raises(SkimError, match="raise --kv-tokens"):
        run(settings)
