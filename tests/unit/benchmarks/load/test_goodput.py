"""The goodput benchmark's table, description and summary of measured points."""

from benchmarks.load.goodput import describe, summary, table

POINT = {"requests": 20, "failed": 0, "request_goodput": 0.1, "ttft_median_ms": 900.0, "ttft_p90_ms": 1900.0}
SETTINGS = {
    "target": "t",
    "speculator": "s",
    "prompt_tokens": 4096,
    "keep_rate": 0.1,
    "requests": 20,
    "shapes": " (small)",
}
RESULT = {
    "settings": SETTINGS,
    "idle_ms": {"dense": 1000.0, "skim": 200.0},
    "objective_ms": 2000.0,
    "points": {
        "dense": [{**POINT, "rate": 0.5, "share": 1.0}, {**POINT, "rate": 0.8, "share": 0.75}],
        "skim": [{**POINT, "rate": 4.0, "share": 0.5}, {**POINT, "rate": 2.5, "share": 0.95}],
    },
    "saturation": {
        "dense": {"rate": 0.5, "breaks_at": 0.8, "goodput": 0.48},
        "skim": {"rate": 2.5, "breaks_at": 4.0, "goodput": 2.4},
    },
    "ratio": 5.0,
}


def test_the_table_rises_with_the_rate() -> None:
    columns, rows = table(RESULT)
    assert [(row[0], row[1], row[2]) for row in rows] == [
        ("dense", "0.500", "100% of 20"),
        ("dense", "0.800", "75% of 20"),
        ("skim", "2.500", "95% of 20"),
        ("skim", "4.000", "50% of 20"),
    ]
    assert all(len(row) == len(columns) for row in rows)


def test_both_rates_are_told_with_where_they_break() -> None:
    text = describe(RESULT)
    assert "dense 0.500 (0.800 is too high); skim 2.500 (4.000 is too high). Skim's goodput is 5.0 x dense." in text


def test_a_rate_that_was_not_found_is_no_number() -> None:
    nothing = {"breaks_at": None, "goodput": None}
    rates = {"dense": {**nothing, "rate": None, "breaks_at": 0.1}, "skim": {**nothing, "rate": 2.0}}
    text = describe(RESULT | {"saturation": rates, "ratio": None})
    assert "dense under 0.100; skim at least 2.000." in text


def test_goodput_is_what_was_served_at_that_rate_not_what_was_offered() -> None:
    """It is also not the largest goodput of all rates: a rate that misses the objective can have a larger one."""
    points = [
        {**POINT, "rate": 1.0, "share": 1.0, "request_goodput": 0.9},
        {**POINT, "rate": 2.0, "share": 0.95, "request_goodput": 1.4},
        {**POINT, "rate": 3.0, "share": 0.8, "request_goodput": 1.6},
    ]
    assert summary(points) == {"rate": 2.0, "breaks_at": 3.0, "goodput": 1.4}
    assert summary(points[2:]) == {"rate": None, "breaks_at": 3.0, "goodput": None}


def test_a_dense_server_that_met_no_rate_bounds_the_comparison():
    dense = {"rate": None, "breaks_at": 0.5, "goodput": None}
    rates = {"dense": dense, "skim": {"rate": 4.0, "breaks_at": None, "goodput": 3.5}}
    assert describe(RESULT | {"saturation": rates, "ratio": None}).endswith("Skim's goodput is over 7.0 x dense.")
    rates["skim"] = {"rate": None, "breaks_at": 4.0, "goodput": None}
    assert " x dense" not in describe(RESULT | {"saturation": rates, "ratio": None})
