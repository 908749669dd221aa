"""The simulation of sessions: the router's own decisions in virtual time, against stock vLLM in the same memory."""

import pytest

from benchmarks.sessions import simulation
from benchmarks.sessions.results import held, row_of, table
from benchmarks.sessions.simulation import Hardware, System, engines, simulate
from benchmarks.sessions.traces import Session, Turn
from cluster.plan import GPUS

HARDWARE = Hardware(GPUS["h100"], 4, 512)
STOCK, SKIM, CATCH_UP = System(), System(skim=True), System(skim=True, catch_up=True)
FP8 = System(kv_bits=8)


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch):
    monkeypatch.setattr(simulation, "WARM_UP_S", 60.0)


def session(first, turns, gap_s=90.0, new=600):
    later, size = [], first
    for _ in range(turns):
        later.append(Turn(gap_s, size, new, 50, False))
        size += new
    return Session(2000, (Turn(0.0, 0, first, 50, True), *later))


def counted(system, sessions, users=1, turns=4):
    """The turns after the warm-up; each user begins at the first turn."""
    return simulate(sessions, users, system, HARDWARE, 0.3, turns)


@pytest.fixture
def from_the_start(monkeypatch):
    monkeypatch.setattr(simulation.random.Random, "randrange", lambda self, *_: 0)


@pytest.mark.usefixtures("from_the_start")
def test_a_session_that_is_cached_runs_dense_in_the_times_of_stock_vllm():
    alone = [session(24_000, 6)]
    stock, skim = counted(STOCK, alone).asked, counted(CATCH_UP, alone).asked
    assert [turn.reason for turn in skim] == ["dense cached"] * len(skim)
    assert [turn.first_s for turn in skim] == pytest.approx([turn.first_s for turn in stock], rel=1e-6)
    assert [turn.cached for turn in skim] == [turn.cached for turn in stock]
    assert all(turn.cached > 0.9 * turn.size for turn in skim)


@pytest.mark.usefixtures("from_the_start")
def test_without_catch_up_the_same_session_stays_skimmed():
    """The control: what the target has read for no client makes the turns dense."""
    found = counted(SKIM, [session(24_000, 6)]).asked
    assert all(turn.kept < turn.size for turn in found)


@pytest.mark.usefixtures("from_the_start")
def test_sessions_that_do_not_fit_are_evicted_and_with_twice_the_blocks_they_are_not():
    many = [session(90_000, 5) for _ in range(6)]
    stock, fp8 = (counted(system, many, users=6, turns=18) for system in (STOCK, FP8))
    assert stock.evicted > 6 * 90_000 > fp8.evicted == 0
    assert max(turn.first_s for turn in stock.asked) > 10 * max(turn.first_s for turn in fp8.asked)


def test_all_systems_have_the_same_kv_memory():
    def size(engine):
        return engine.tokens * engine.planned.kv_bytes(1) * engine.planned.ranks

    stock, fp8 = engines(HARDWARE, STOCK)[0], engines(HARDWARE, FP8)[0]
    target, speculator = engines(HARDWARE, SKIM)
    assert size(fp8) == pytest.approx(size(stock), rel=1e-3)
    assert fp8.tokens == pytest.approx(2 * stock.tokens, rel=1e-3)
    assert size(target) + size(speculator) == pytest.approx(size(stock), rel=1e-3)


def row(system, sessions, p95_s, mean_s=1.0):
    return {"system": system.name, "kv_bits": system.kv_bits, "sessions": sessions, "p95_s": p95_s, "mean_s": mean_s}


def test_a_system_holds_the_sessions_up_to_the_first_number_over_the_limit():
    rows = [row(STOCK, users, p95_s) for users, p95_s in ((4, 1.0), (8, 1.9), (16, 2.1), (24, 1.5))]
    assert held(rows, 2.0) == 8
    assert held(rows, 1.0) == 0


@pytest.mark.usefixtures("from_the_start")
def test_the_table_divides_by_stock_with_as_many_bits_and_sessions():
    found = counted(STOCK, [session(4000, 4)], turns=2)
    rows = [row_of(system, found) for system in (STOCK, FP8)]
    skim = {**row_of(System(skim=True, kv_bits=8), found), "mean_s": 3 * rows[1]["mean_s"]}
    other = {**skim, "sessions": 7}
    columns, cells = table({"rows": [*rows, skim, other]})
    assert [line[columns.index("/ stock")] for line in cells] == ["1.00", "1.00", "3.00", ""]
