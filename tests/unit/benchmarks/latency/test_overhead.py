"""The overhead benchmark: differences and parts, computed from given times."""

import pytest

from benchmarks.harness.chat_client import Timed
from benchmarks.latency.overhead_parts import OUTSIDE_ENGINES, PARTS, added, parts_table, split
from benchmarks.latency.overhead_results import describe, table
from demo_models.answers import read_server_timing


def test_what_is_added_is_the_difference_of_the_same_prompts() -> None:
    """The ratio of medians would hide it, because prompts differ more from each other than the two paths do."""
    base = [Timed(first, first + 10, 4) for first in (100.0, 900.0, 300.0, 500.0)]
    slower = [
        Timed(timed.first_ms + more, timed.end_ms + 20, 4) for timed, more in zip(base, (5, 6, 7, 8), strict=True)
    ]
    [difference] = added({"in_process": base, "skim": slower})["added"].values()
    assert difference["first_ms"] == {"median": 6.5, "low": 5.75, "high": 7.25, "ratio": pytest.approx(407.5 / 400)}
    assert difference["end_ms"]["median"] == 20


def test_the_parts_sum_up_to_the_clients_time() -> None:
    header = (
        "tokenize;dur=4.00, queue;dur=1.50, speculate;dur=40.00, select;dur=0.50, transfer;dur=5.00, prefill;dur=30.00"
    )
    timed = Timed(90.0, 100.0, 4, read_server_timing(f"{header}, total;dur=83.00"))
    parts = split(timed, select_hop=2.0)
    assert parts == {
        "tokenize": 4.0, "queue": 1.5, "speculate": 40.0, "select": 0.5, "prefill": 30.0,
        "select_hop": 2.0, "generate_hop": 3.0, "route": 2.0, "http": 7.0,
    }  # fmt: skip
    assert sum(parts.values()) == timed.first_ms
    assert set(parts) == set(PARTS)


def test_parts_that_a_path_does_not_have_are_zero() -> None:
    through = [dict.fromkeys(PARTS, 2.0), dict.fromkeys(PARTS, 3.0), dict.fromkeys(PARTS, 9.0)]
    rows = parts_table([Timed(10.0, 12.0, 2, {"queue": 1.0, "select_hop": 0.5})] * 3, through)
    by_part = {row["part"]: row for row in rows}
    assert tuple(by_part) == PARTS
    assert (by_part["tokenize"]["skim_ms"], by_part["tokenize"]["in_process_ms"]) == (3.0, 0.0)
    assert by_part["queue"]["added_ms"] == 2.0
    assert by_part["select_hop"]["added_ms"] == 2.5
    assert set(OUTSIDE_ENGINES) < set(PARTS)


def test_the_table_has_a_row_for_each_path() -> None:
    times = {"requests": 8, "first_ms": 100.0, "first_p90_ms": 120.0, "end_ms": 130.0, "ms_per_token": 2.0}
    difference = {"median": 12.3, "low": 11.0, "high": 14.0, "ratio": 1.12}
    row = {"engine": "vllm", "mode": "dense", "stream": True, "concurrency": 8}
    more = {path: {"first_ms": difference, "end_ms": difference} for path in ("skim", "skim_ids", "ray_serve_llm")}
    row |= {"paths": dict.fromkeys(("in_process", *more), times), "added": more}
    settings = {"target": "t", "speculator": "s", "prompt_tokens": 2048, "answer_tokens": 16, "keep_rate": 0.2}
    parts = {"vllm": [{"part": "http", "skim_ms": 7.0, "in_process_ms": 0.0, "added_ms": 7.0}]}
    result = {"settings": settings | {"requests": 8}, "rows": [row], "parts": parts}
    columns, rows = table(result)
    assert [cells[4] for cells in rows] == ["skim", "skim, token ids", "ray.serve.llm"]
    assert all(len(cells) == len(columns) for cells in rows)
    assert rows[0][7] == "12.3 (11.0 to 14.0)"
    assert "vllm engines, median ms: http 7.0" in describe(result)
    assert "ValueError: no CPU" in describe(result | {"ray_serve_llm_failed": "ValueError: no CPU"})
