"""`skim bench turns`: the order of its requests, what each mode sends, and its rows, table and plot."""

import json
from dataclasses import replace

import aiohttp
import pytest

from benchmarks.harness.conversations import conversation
from benchmarks.latency import turns as benchmark
from benchmarks.latency.turns import MODES, TurnsSettings, prefill_options, turns
from benchmarks.latency.turns_results import Answered, describe, plot, rows_of, table, totals_of
from benchmarks.report import plots
from evals.report.__main__ import details
from tests.unit.benchmarks.openai_server import openai_server

SETTINGS = TurnsSettings("/models/target", "/models/speculator", document_tokens=1200, turns=3, rounds=2)


def answered(mode: str, index: int, turn: int, ms: float, **more) -> Answered:
    given = {"prompt_tokens": 1000 + 20 * turn, "kept_tokens": 1000 + 20 * turn, "target_cached": 960 if turn else 0}
    told = {"speculator_cached": None, "reason": "", "right": True, **given, **more}
    return Answered(mode=mode, round=index, turn=turn, ttft_ms=ms, **told)


def measured() -> list[Answered]:
    """Two rounds, of which the second is twice as slow. Skim takes half of dense's first turn and 1.5 of the second."""
    found = []
    for index, slow in ((1, 1.0), (2, 2.0)):
        found += [answered("dense", index, 0, 1000 * slow), answered("dense", index, 1, 100 * slow)]
        parts = {"speculate": 80 * slow, "prefill": 60 * slow}
        skim = {"kept_tokens": 200, "speculator_cached": 0, "reason": "requested", "parts": parts}
        found.append(answered("auto", index, 0, 500 * slow, **skim))
        later = {**skim, "kept_tokens": 230, "target_cached": 190, "speculator_cached": 992}
        found.append(answered("auto", index, 1, 150 * slow, **later, right=index == 1))
    return found


@pytest.fixture
def result() -> dict:
    settings = {**vars(SETTINGS), "target": "target", "speculator": "speculator", "turns": 2}
    return {
        "machine": {"usable_cores": 2, "machine": "x86_64", "gpu": None, "day": "2026-11-27"},
        "command": "skim bench turns",
        "settings": settings,
        "modes": {mode: MODES[mode] for mode in ("dense", "auto")},
        "rows": rows_of(measured()),
        "totals": totals_of(measured()),
    }


def test_every_mode_takes_every_turn_and_the_order_alternates():
    modes = list(MODES)
    first, second = (list(turns(3, modes, index)) for index in (0, 1))
    assert sorted(first) == sorted(second) == sorted((turn, mode) for turn in range(3) for mode in modes)
    assert [mode for turn, mode in first if turn == 0] == modes[::-1] == [mode for turn, mode in first if turn == 2]
    assert [mode for turn, mode in second if turn == 0] == modes
    assert [turn for turn, _ in first] == sorted(turn for turn, _ in first), "a turn needs the answers of the last one"


def test_what_each_mode_asks_for():
    asked = {"keep_rate": 0.1, "catch_up": "off"}
    assert prefill_options(SETTINGS, "auto", 0) == asked
    assert prefill_options(SETTINGS, "caught up", 0) == asked | {"catch_up": "always"}
    assert prefill_options(SETTINGS, "speculative", 3) == asked | {"enabled": "always"}
    assert prefill_options(SETTINGS, "fresh", 3) == asked | {"enabled": "always", "reuse": "off"}
    assert prefill_options(SETTINGS, "dense first", 0) is False
    assert prefill_options(SETTINGS, "dense first", 1) == asked


def test_ratios_are_formed_within_a_round():
    by_place = {(row["turn"], row["mode"]): row for row in rows_of(measured())}
    assert by_place[1, "auto"]["over_dense"] == {"median": 0.5, "lowest": 0.5, "highest": 0.5}
    assert by_place[2, "auto"]["over_dense"]["median"] == 1.5
    assert by_place[2, "auto"]["parts_ms"] == {"speculate": 120, "prefill": 90}
    assert by_place[2, "dense"]["parts_ms"] == {}
    assert by_place[2, "dense"]["ttft_ms"] == {"median": 150, "lowest": 100, "highest": 200}
    sums = {total["mode"]: total for total in totals_of(measured())}
    assert sums["auto"]["over_dense"] == pytest.approx(
        {"median": 650 / 1100} | dict.fromkeys(["lowest", "highest"], 650 / 1100)
    )
    assert sums["auto"]["later_over_dense"]["highest"] == 1.5


def test_computed_tokens_and_the_share_that_was_found():
    by_place = {(row["turn"], row["mode"]): row for row in rows_of(measured())}
    first, later = by_place[1, "auto"], by_place[2, "auto"]
    assert (first["target_computed"], first["speculator_computed"], first["found"]) == (200, 1000, None)
    assert (later["target_computed"], later["speculator_computed"], later["found"]) == (40, 28, 190 / 200)
    assert by_place[2, "dense"]["speculator_computed"] == 0
    assert later["reasons"] == {"requested": 2}


def test_answers_are_counted_with_an_interval():
    [_, auto] = totals_of(measured())
    assert (auto["right"], auto["judged"]) == (3, 4)
    assert auto["low"] < 0.75 < auto["high"]
    unjudged = [replace(a, right=None) for a in measured()]
    assert [(total["judged"], total["low"]) for total in totals_of(unjudged)] == [(0, None)] * 2


def test_table_page_and_plot(result, tmp_path):
    columns, rows = table(result)
    assert all(len(row) == len(columns) for row in rows)
    assert [row[:4] for row in rows[:2]] == [
        ["1", "dense", "1,500", "1.00 (1.00 to 1.00)"],
        ["1", "auto", "750", "0.50 (0.50 to 0.50)"],
    ]
    assert rows[-1][:4] == ["sum", "auto", "975", "0.59 (0.59 to 0.59)"]
    assert "found 95%, right 3 of 4" in describe(result)
    unjudged = {**result, "rows": rows_of([replace(a, right=None) for a in measured()])}
    assert "right" not in table(unjudged)[0]
    (tmp_path / "turns.json").write_text(json.dumps(result))
    assert "## Turns of a conversation" in details("Latency", tmp_path)
    plot(result, tmp_path / "turns.png")
    assert plots.source_of(tmp_path / "turns.png") == plots.digest(result)


async def test_a_conversation_over_http():
    """The client sends the history with the answers it got, one salt for each conversation, and reads what is told."""
    chat = conversation(1200, 2, 0)
    async with openai_server(speculator_cached=1000) as (url, bodies), aiohttp.ClientSession() as session:
        clients = [benchmark._Client(SETTINGS, session, url, mode, chat, 1) for mode in ("dense", "auto")]
        found = [await client.ask(turn) for turn in range(2) for client in clients]
    assert [(a.mode, a.kept_tokens, a.target_cached, a.speculator_cached) for a in found[:2]] == [
        ("dense", 1200, 128, None),
        ("auto", 150, 128, 1000),
    ]
    assert [a.reason for a in found[:2]] == ["", "speculative, requested"]
    assert all(a.right is False for a in found)
    assert [len(body["messages"]) for body in bodies] == [1, 1, 3, 3]
    assert bodies[2]["messages"][1] == {"role": "assistant", "content": " 1234."}
    assert len({body["cache_salt"] for body in bodies}) == 2


async def test_the_history_of_random_models_has_the_right_answers():
    chat = conversation(1200, 2, 0)
    scripted = replace(SETTINGS, scripted=True)
    async with openai_server() as (url, bodies), aiohttp.ClientSession() as session:
        client = benchmark._Client(scripted, session, url, "auto", chat, 1)
        found = [await client.ask(turn) for turn in range(2)]
    assert bodies[1]["messages"][1]["content"] == f"{chat.questions[0].expected}."
    assert all(body["ignore_eos"] for body in bodies)
    assert [a.right for a in found] == [None, None]


def test_windows_from_the_cache_have_no_number_of_computed_tokens():
    found = {"rows": rows_of(measured()), "totals": totals_of(measured())}
    found["rows"][1]["speculator_computed"] = -62
    columns, rows = table(found)
    at = columns.index("speculator computes")
    assert [row[at] for row in rows].count("windows") == 1
    assert not any(row[at].startswith("-") for row in rows)
