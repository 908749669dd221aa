"""The rows, the table and the plot of `skim bench scoring`, from given times."""

from benchmarks.engines.scoring import describe, plot, row_of, share_of, table
from benchmarks.report import plots

ALONE = {"scoring_ms": 12.0, "read_gb_s": 20.0, "peak_bytes": 64 * 2**20, "key_bytes": 8 * 10**6}


def result() -> dict:
    share = share_of([1000.0, 2000.0, 3000.0], [10.0, 20.0, 90.0])
    return {
        "models": {"speculator": "2 layers x 256"},
        "settings": {"look_ahead": 8, "repeats": 9, "rounds": 3},
        "rows": [row_of(1024, ALONE, None), row_of(4096, ALONE, share), row_of(16384, None, share)],
    }


def test_reading_the_keys_follows_from_their_bytes_and_the_bandwidth() -> None:
    row = row_of(1024, ALONE, None)
    assert row["alone"]["keys_ms"] == 0.4
    assert row["alone"]["scoring_over_keys"] == 30


def test_a_share_is_formed_within_a_round() -> None:
    share = share_of([1000.0, 2000.0, 3000.0], [10.0, 20.0, 90.0])
    assert share["share"] == {"median": 0.01, "lowest": 0.01, "highest": 0.03}
    assert share["prefill_ms"] == 2000


def test_table_leaves_empty_what_was_not_measured() -> None:
    columns, rows = table(result())
    assert all(len(row) == len(columns) for row in rows)
    assert rows[0][-1] == rows[2][1] == ""
    assert rows[1][-1] == "1.00% (1.00% to 3.00%)"
    assert "8 look-ahead" in describe(result())


def test_plot(tmp_path) -> None:
    plot(result(), tmp_path / "scoring.png")
    assert plots.source_of(tmp_path / "scoring.png") == plots.digest(result())
