"""The section of a soak run says all that clients saw."""

from benchmarks.report.soak import describe, plot, table

USED = {"processes": 2, "mib": 100.0, "descriptors": 80}
ROUND = {
    "case": "proxy",
    "at_s": 60.0,
    "could_answer": False,
    "answers": {"answered": 7, "refused": 2},
    "usage": {"router": USED},
}
RESULT = {
    "settings": {"minutes": 5, "load": 0.8, "clients": 8, "seed": 1, "sustainable_per_s": 10.0, "rate_per_s": 8.0},
    "rounds": [
        {**ROUND, "findings": []},
        {**ROUND, "answers": {"wrong": 1}, "could_answer": True, "findings": ["1 wrong: ['x']"]},
    ],
    "usage": {"router": {"begin": USED, "end": {**USED, "mib": 130.0}, "mib_per_minute": 0.5}},
}


def test_every_answer_and_finding_is_told() -> None:
    text = describe(RESULT)
    assert "Of 10 requests 7 had the right answer; 1 wrong, 0 without an end, 2 refused" in text
    assert "Findings: proxy: 1 wrong: ['x']. Cases: proxy (2)." in text
    assert "arrive at random times (Poisson), 8.0 per second: 80% of the 10.0" in text
    assert "In the 1 rounds in which something was left that could answer, 0 of 1 failed" in text
    assert "in the 1 rounds in which nothing was left, 2 of 9 failed" in text
    assert "Findings: none" in describe({**RESULT, "rounds": RESULT["rounds"][:1]})


def test_the_memory_by_kind(tmp_path) -> None:
    columns, rows = table(RESULT)
    assert rows == [["router", "2", "100", "130", "+0.50", "80", "80"]]
    assert len(columns) == len(rows[0])
    plot(RESULT, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").exists()
