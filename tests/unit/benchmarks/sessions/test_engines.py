"""`skim bench sessions --engines`: scaled sessions over HTTP, equal memory, and options that are refused."""

import pytest

from benchmarks.report.progress import silent
from benchmarks.sessions import engines
from benchmarks.sessions.engines import EngineSettings, capacities, scaled
from benchmarks.sessions.results import describe, table
from benchmarks.sessions.traces import Session, Turn
from tests.unit.benchmarks.openai_server import openai_server

SETTINGS = EngineSettings("", "", sessions=(1, 2), scale=10, gap_scale=10, most_gap_s=3.0, seconds=0.0)
SESSION = Session(400, (Turn(0.0, 0, 1000, 5, True), Turn(20.0, 1000, 505, 5, False), Turn(99.0, 300, 600, 5, False)))


def test_a_scaled_session_keeps_what_its_prompts_share():
    found = scaled(SESSION, SETTINGS)
    assert found.opening == 40
    assert [(turn.gap_s, turn.shared, turn.size) for turn in found.turns] == [(0, 0, 100), (2, 100, 150), (3, 30, 90)]


def test_skims_two_caches_have_the_memory_of_the_stock_server():
    found = capacities(10_000, "demo_models/target", "demo_models/speculator")
    bytes_per_token = 2 * 5 * 64 * 2, 2 * 2 * 64 * 2  # of the demo pair: layers, KV heads, their size, keys and values
    used = sum(tokens * each for tokens, each in zip(found.values(), bytes_per_token, strict=True))
    assert used == pytest.approx(10_000 * bytes_per_token[0], rel=1e-3)


async def test_all_systems_get_the_same_prompts_and_each_its_options(monkeypatch):
    monkeypatch.setattr(engines, "SETTLE_S", 0)
    async with openai_server() as (stock, to_stock), openai_server() as (skim, to_skim):
        rows = await engines._measure(SETTINGS, [SESSION], {"stock": stock, "Skim": skim}, silent)
    assert [(row["system"], row["sessions"]) for row in rows] == [
        (system.name, users) for users in SETTINGS.sessions for system in engines.SYSTEMS
    ]
    prompts = {
        salt: [body["prompt"] for body in to_stock + to_skim if body["cache_salt"] == salt]
        for salt in ("stock-1", "Skim-1", "Skim, catch-up-1")
    }
    assert prompts["stock-1"] == prompts["Skim-1"] == prompts["Skim, catch-up-1"] != []
    asked = {body["speculative_prefill"]["catch_up"] for body in to_skim}
    assert asked == {"off", "auto"}
    assert not any("speculative_prefill" in body for body in to_stock)
    assert to_skim[0]["speculative_prefill"]["protected_spans"][0] == [0, SESSION.opening]
    assert rows[1]["reasons"] == {"speculative, requested": 1}
    result = {"rows": rows, "settings": {"longest": 4096, "keep_rate": 0.3}, "idle": rows[0], "limit_s": 1.0}
    columns, cells = table(result)
    assert all(len(line) == len(columns) for line in cells)
    assert "Skim 2" in describe({**result, "about": "Here.", "traces": "1", "held": {"Skim": {"sessions": 2}}})


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (("--engines", "--turns", "100"), "--engines takes none of the simulation's options: systems, turns"),
        (("--systems", "stock;other"), "--systems: there is no other; choose from stock; Skim; Skim, catch-up"),
        (("--target", "a", "--speculator", "b"), "--target and --speculator are for --engines"),
        (("--sessions", "0,4"), "--sessions takes whole numbers from 1 up with commas between them"),
        (("--gpu", "abacus"), "--gpu abacus: the plan knows a100"),
    ],
)
def test_options_that_would_not_act_are_refused(skim, words, wrong):
    ran = skim("bench", "sessions", *words)
    assert ran.code == 2
    assert wrong in " ".join(ran.error.split())
