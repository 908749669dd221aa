"""The measurements with a pair of known times, and their tables."""

import json

import pytest

from benchmarks.gpu import decode, scoring, ttft
from benchmarks.gpu.arithmetic import FAR, Arithmetic, reason
from benchmarks.gpu.presets import configs, preset
from benchmarks.gpu.steps.step import ROOT
from benchmarks.gpu.ttft import kept_by_default
from router.options.request import PrefillOptions
from skim_common.errors import SkimError
from tests.unit.benchmarks.gpu.fake_pair import FakePair

READS = ("whole", "windows:128")


async def test_ttft_tells_of_every_case(tmp_path):
    pair, partial = FakePair(), []
    settings = ttft.GpuTtftSettings("toy", "cpu", (64, 4096), (0.2, "default"), rounds=2, reads=READS)
    result = await ttft.run(pair, settings, partial=partial.append)
    cases = [("whole", 0.2), ("whole", "default"), ("windows:128", 0.2), ("windows:128", "default")]
    assert [(row["read"], row["keep_rate"]) for row in result["rows"]] == 2 * cases
    assert [row["prompt_tokens"] for row in result["rows"]] == [64] * 4 + [4096] * 4
    by_default = result["rows"][5]
    assert by_default["kept_tokens"] == round(0.37 * 4096)
    assert by_default["limit_ms"] == pytest.approx(0.2 * 4096 + by_default["kept_tokens"])
    assert by_default["dense_to_skim"]["median"] == pytest.approx(4096 / (1.1 + 0.2 * 4096 + by_default["kept_tokens"]))
    # A warm-up with the shortest prompt, and two rounds of which each reads a prompt once in each way.
    assert pair.read_windows == [(64, None), (64, 128), *2 * [(64, None), (64, 128), (4096, None), (4096, 128)]]
    assert [len(each["rows"]) for each in partial] == [4, 8, 8, 8], "what is known is told after each length"
    _shown(ttft, result, tmp_path)


def test_ways_to_read():
    assert [ttft.window_of(read) for read in READS] == [None, 128]
    with pytest.raises(SkimError, match="windows:TOKENS"):
        ttft.window_of("windows")


@pytest.mark.parametrize(
    ("tokens", "share"),
    [(1, 1.0), (1999, 1.0), (2000, 0.38), (4095, 0.38), (4096, 0.37), (8192, 0.32), (16383, 0.32), (1_000_000, 0.30)],
)
def test_the_share_of_a_prompt(tokens, share):
    assert PrefillOptions().min_prompt_tokens == 2000
    assert kept_by_default(tokens) == share


def test_the_arithmetic_is_that_of_the_plan():
    """Measured on an H200: dense 1,201 and 3,296 ms, with a read of the whole prompt 2.51 and 2.78 times as fast."""
    arithmetic = Arithmetic.of(*configs(preset("8b")), "NVIDIA H200")
    for tokens, dense, kept, ratio in ((32768, 1201, 3328, 2.51), (65536, 3296, 6592, 2.78)):
        expected = arithmetic.expected(tokens, kept, None)
        assert expected["dense_ms"] == pytest.approx(dense, rel=0.05)
        assert expected["dense_to_skim"] == pytest.approx(ratio, rel=0.1)
        assert arithmetic.expected(tokens, kept, 4096)["read_ms"] < expected["read_ms"]
    assert Arithmetic.of(*configs(preset("8b")), None) is None


@pytest.mark.parametrize(("rate", "cells"), [(0.1, "1.6 | 2.8 | 4.1 | 6.9"), (0.2, "1.4 | 2.3 | 3.3 | 5.1")])
def test_the_page_has_the_arithmetic(rate, cells):
    arithmetic = Arithmetic.of(*configs(preset("8b")), "NVIDIA H200")
    tokens = (8192, 32768, 65536, 131072)
    ratios = [arithmetic.expected(n, int(rate * n), 4096)["dense_to_skim"] for n in tokens]
    assert " | ".join(f"{ratio:.1f}" for ratio in ratios) == cells
    assert f"| keep .{round(10 * rate)} | {cells} |" in (ROOT / "docs" / "gpu.md").read_text()


def test_a_ratio_that_is_not_as_expected_gets_a_reason():
    expected = {"dense_ms": 1000.0, "read_ms": 100.0, "kept_ms": 100.0, "skim_ms": 236.0, "dense_to_skim": 4.2}
    row = {"dense_ms": 1000.0, "speculate_ms": 300.0, "prefill_ms": 100.0, "skim_ms": 410.0, "expected": expected}
    slow = row | {"dense_to_skim": {"median": 1000 / 410}}
    assert reason(slow) == (
        "dense 1.00 times the expected time, read 3.00 times the expected time, kept 1.00 times the expected time, "
        "10 ms beside both engines"
    )
    assert reason(row | {"dense_to_skim": {"median": 4.2 / FAR + 0.01}}) == ""
    assert reason({"dense_to_skim": {"median": 1.0}}) == "", "there is no arithmetic on a CPU"


async def test_decode_tells_measured_from_computed(tmp_path):
    settings = decode.GpuDecodeSettings("toy", "cpu", (64,), 0.3, 2, (0.0, 1.0), 21, 1)
    result = await decode.run(FakePair(), settings)
    (entry,) = result["lengths"]
    assert list(entry["modes"]) == ["plain", "instant", "remote 0.0", "remote 1.0"]
    assert entry["modes"]["remote 1.0"]["tokens_per_verify"] == 3
    _, rows = decode.table(result)
    assert [row[1] for row in rows if not row[2]] == [f"computed, acceptance {a}" for a in decode.COMPUTED]
    _shown(decode, result, tmp_path)


def test_the_speed_up_is_computed_by_hand():
    costs = {"plain_ms": 10.0, "verify_ms": 12.0, "draft_ms": 8.0}
    rows = {row["acceptance"]: row for row in decode.computed(costs, 2)}
    assert rows[0.5]["tokens_per_step"] == 1 + 0.5 + 0.25
    assert rows[0.5]["speed_up"] == pytest.approx(1.75 * 10 / 20)


def test_scoring_counts_keys_once(tmp_path):
    result = scoring.run(scoring.GpuScoringSettings("cpu", "toy-small", (50, 100), look_ahead=1, rounds=1))
    first, second = result["rows"]
    assert first["key_bytes"] == 2 * 2 * 50 * 32 * 4
    assert second["share_of_copy"] == pytest.approx(
        second["key_bytes"] / (second["ms"] / 1e3) / second["copy_bytes_per_second"]
    )
    assert first["peak_bytes"] is None
    _shown(scoring, result, tmp_path)


def test_a_tiling_is_read():
    assert scoring._tiling("64x32x8")[:2] == (64, 32)
    with pytest.raises(SkimError, match="TILExROWSxWARPS"):
        scoring._tiling("64")


def _shown(module, result, folder):
    """The result can be written as JSON, described, shown as a table and drawn."""
    json.dumps(result)
    columns, rows = module.table(result)
    assert rows
    assert {len(row) for row in rows} == {len(columns)}
    assert module.describe(result).endswith(".")
    module.plot(result, folder / "plot.png")
    assert (folder / "plot.png").stat().st_size > 1000
