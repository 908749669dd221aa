"""`skim bench ttft`: the order of its turns, and its rows, table and plot from given times."""

import itertools
import json

import pytest

from benchmarks.latency.ttft import Timing, TtftSettings, Turn, _Asker, rows_of, turns
from benchmarks.latency.ttft_results import describe, plot, table
from benchmarks.report import plots
from evals.report.__main__ import details

SMALL = TtftSettings(lengths=(1024, 4096), keep_rates=(0.1, 1.0), short_lengths=(256,), rounds=2)


def timing(column: str, tokens: int, rate: float | None, index: int, ms: float, **parts: float) -> Timing:
    return Timing(Turn(column, tokens, rate), index, ms, 100, parts)


def times(tokens: int, rate: float | None) -> list[Timing]:
    """Three rounds on a machine that gets slower. The ratios within a round are always 4 and 1.25."""
    return [
        made
        for index, slow in enumerate((1.0, 2.0, 10.0))
        for made in (
            timing("dense", tokens, None, index, 1000 * slow),
            timing("skim", tokens, rate, index, 250 * slow, speculate=90 * slow),
            timing("limit", tokens, rate, index, 200 * slow, target=120 * slow, speculator=80 * slow),
        )
    ]


def result(rows: list[dict]) -> dict:
    return {
        "models": {"target": "12 layers x 768", "speculator": "2 layers x 256"},
        "settings": {"rounds": 3, "keep_rates": [0.1], "lengths": [4096]},
        "defaults": {"keep_rate": 0.2, "min_prompt_tokens": 1024, "window_tokens": 1024},
        "flop_ratios": {"4096": 9.8},
        "machine": {"usable_cores": 2, "machine": "x86_64", "gpu": None, "day": "2026-11-27"},
        "command": "skim bench ttft",
        "rows": rows,
    }


def test_ratios_are_formed_within_a_round() -> None:
    [row] = rows_of(times(4096, 0.1))
    assert row["dense_ms"] == 2000
    assert row["dense_over_skim"] == {"median": 4, "lowest": 4, "highest": 4}
    assert row["skim_over_limit"] == {"median": 1.25, "lowest": 1.25, "highest": 1.25}
    assert row["parts"] == {"skim": {"speculate": 180}, "limit": {"target": 240, "speculator": 160}}
    assert row["kept_tokens"] == 100


def test_a_spread_is_told() -> None:
    noisy = [t for t in times(4096, 0.1) if t.turn.column != "skim"]
    noisy += [timing("skim", 4096, 0.1, index, ms) for index, ms in enumerate((250.0, 1000.0, 2000.0))]
    [row] = rows_of(noisy)
    assert row["dense_over_skim"] == {"median": 4, "lowest": 2, "highest": 5}


def test_rows_are_by_length_and_rate_with_the_defaults_apart() -> None:
    of_other_rate = [t for t in times(4096, 0.1) if t.turn.column != "dense"]
    rows = rows_of([*times(4096, 1.0), *times(256, None), *of_other_rate])
    assert [(row["prompt_tokens"], row["keep_rate"]) for row in rows] == [(256, None), (4096, 0.1), (4096, 1.0)]


def test_a_column_that_missed_a_round_is_no_row() -> None:
    with pytest.raises(ValueError, match="zip"):
        rows_of(times(4096, 0.1)[:-1])


def test_turns_alternate_and_turn_round() -> None:
    first, second = list(turns(SMALL, 0)), list(turns(SMALL, 1))
    assert sorted(map(str, first)) == sorted(map(str, second))
    at_4096 = [[turn for turn in order if turn.prompt_tokens == 4096] for order in (first, second)]
    assert [turn.column for turn in at_4096[0]] == ["dense", "skim", "limit", "skim", "limit"]
    assert [turn.column for turn in at_4096[1]] == ["skim", "limit", "skim", "limit", "dense"]
    for turn, following in itertools.pairwise(first):
        if turn.column == "skim":
            assert following == Turn("limit", turn.prompt_tokens, turn.keep_rate), "the limit follows Skim"
    assert [turn for turn in first if turn.prompt_tokens == 256] == [
        Turn(column, 256, None) for column in ("dense", "skim", "limit")
    ]


async def test_the_limit_reads_windows_where_skim_does() -> None:
    read: list[list[int]] = []

    class Engine:
        async def forward_ms(self, *prompts: list[int]) -> float:
            read.append([len(prompt) for prompt in prompts])
            return 1.0

    asker = _Asker(None, {}, {"target": Engine(), "speculator": Engine()})
    for tokens, kept in ((4200, 800), (2048, 400), (4200, 4200)):
        await asker._limit(list(range(tokens)), kept)
    assert read == [[800], [4096, 104], [400], [2048], [4200]]


def test_table_and_page(tmp_path) -> None:
    found = result(rows_of([*times(4096, 0.1), *times(256, None)]))
    columns, rows = table(found)
    assert all(len(row) == len(columns) for row in rows)
    assert rows[0][:2] == ["256", "default"]
    assert rows[1][-3:] == ["1.25 (1.25 to 1.25)", "4.00 (4.00 to 4.00)", "5.00"]
    assert "9.8 at 4,096" in describe(found)
    assert "in windows of at most 1,024 tokens" in describe(found)
    (tmp_path / "ttft.json").write_text(json.dumps(found))
    assert "| 4,096 | 0.1 | 100 | 2,000 | 500 | 400 |" in details("Latency", tmp_path)


def test_plot(tmp_path) -> None:
    found = result(rows_of([*times(4096, 0.1), *times(1024, 0.1), *times(256, None)]))
    plot(found, tmp_path / "ttft.png")
    assert plots.source_of(tmp_path / "ttft.png") == plots.digest(found)
