"""The section of the engines' soak run says all that clients saw."""

from benchmarks.report.engine_soak import describe, plot, table

FALLBACKS = {"timeout": 3, "unreachable": 1, "breaker": 5, "broken": 0, "no_draft": 7, "no_session": 9}
ROUND = {
    "case": "KV cache full: 32 requests at once",
    "slowest_s": 2.5,
    "answers": {"answered": 20, "left": 2},
    "accepted": 30,
    "fallbacks": FALLBACKS,
    "preempted": 4,
    "findings": [],
}
RESULT = {
    "settings": {"minutes": 3, "load": 0.8, "seed": 1, "sustainable_per_s": 10.0, "rate_per_s": 8.0},
    "rounds": [
        {**ROUND, "findings": ["left behind: 2 sessions"]},
        {**ROUND, "answers": {"answered": 1, "wrong": 1, "broken": 1, "hung": 1}, "slowest_s": 120.0},
        {**ROUND, "case": "draft channel cut"},
    ],
}


def test_every_answer_and_finding_is_told() -> None:
    text = describe(RESULT)
    assert "8.0 requests per second: 80% of what it answered" in text
    assert "Of 48 requests 41 had the right answer, 1 a wrong one; 1 failed, 1 had no end, and 4 clients left." in text
    assert "Findings: KV cache full: 32 requests at once: left behind: 2 sessions." in text
    assert "Findings: none." in describe({**RESULT, "rounds": RESULT["rounds"][1:]})


def test_a_row_for_each_case(tmp_path) -> None:
    columns, rows = table(RESULT)
    assert rows == [
        ["KV cache full: 32 requests at once", "2", "21", "3", "120.0", "60", "18", "8"],
        ["draft channel cut", "1", "20", "0", "2.5", "30", "9", "4"],
    ]
    assert len(columns) == len(rows[0])
    plot(RESULT, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").exists()
