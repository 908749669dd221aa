"""The section of a soak run says all that clients saw."""

from benchmarks.soak_results import describe, plot, table

USED = {"processes": 2, "mib": 100.0, "descriptors": 80}
ROUND = {"case": "proxy", "at_s": 60.0, "answers": {"answered": 7, "refused": 2}, "usage": {"router": USED}}
RESULT = {
    "settings": {"minutes": 5, "clients": 8, "seed": 1},
    "rounds": [{**ROUND, "findings": []}, {**ROUND, "answers": {"wrong": 1}, "findings": ["1 wrong: ['x']"]}],
    "usage": {"router": {"begin": USED, "end": {**USED, "mib": 130.0}, "mib_per_minute": 0.5}},
}


def test_every_answer_and_finding_is_told() -> None:
    text = describe(RESULT)
    assert "Of 10 requests 7 had the right answer; 1 wrong, 0 without an end, 2 refused" in text
    assert "Findings: proxy: 1 wrong: ['x']. Cases: proxy (2)." in text
    assert "Findings: none" in describe({**RESULT, "rounds": RESULT["rounds"][:1]})


def test_the_memory_by_kind(tmp_path) -> None:
    columns, rows = table(RESULT)
    assert rows == [["router", "2", "100", "130", "+0.50", "80", "80"]]
    assert len(columns) == len(rows[0])
    plot(RESULT, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").exists()
