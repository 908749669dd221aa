"""A read in windows over several replicas: the same scores, a shorter time, and what happens to a replica's part."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.harness.virtual_time import run
from benchmarks.mock_engines.speculator import MockSpeculator
from kv_transfer.windows import WindowsRequest
from skim_common.errors import EngineUnavailableError, SkimError
from speculator_service.reading.read import read_in_windows
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import relaid
from tests.unit.speculator_service.reading.replicas import FRAME, OPTIONS, Pool, asking

ASKED = np.arange(2, dtype=np.int32), np.array([2], np.int32)
"""One question of two tokens."""


def read(pool, request, home="replica 0"):
    """The scores, and the seconds of virtual time until they are there."""

    async def timed():
        clock = asyncio.get_running_loop().time
        began = clock()
        return await read_in_windows(pool.engines[home], request, pool.peers(home)), clock() - began

    return run(timed())


def one_replica(model, request):
    scores, _ = read(Pool(model, 1), request)
    return scores.importance


def test_the_scores_are_those_of_one_replica(demo_speculator):
    request, pool = asking(), Pool(demo_speculator, 3)
    scores, _ = read(pool, request)
    assert np.array_equal(scores.importance, one_replica(demo_speculator, request))
    assert scores.importance[: request.layout.questions[0, 0]].all()
    windows = {name: engine.started for name, engine in pool.engines.items()}
    assert min(windows.values()) >= 0.7 * sum(windows.values()) / 3


def test_a_read_of_16k_tokens_over_two_replicas_takes_little_more_than_half_the_time(demo_speculator):
    """In virtual time, with engines that read one window after another."""
    ratios = []
    for seed in range(8):
        one, two = (read(Pool(demo_speculator, n, ms_per_token=0.1), asking(seed=seed))[1] for n in (1, 2))
        ratios.append(one / two)
    assert one == pytest.approx(0.1e-3 * 16384, rel=0.1)
    assert min(ratios) >= 1.7


def test_a_document_meets_its_cache_in_another_prompt(demo_speculator):
    pool, first = Pool(demo_speculator, 2, cache_tokens=200_000), asking()
    other = asking(4096, seed=1)
    # The document stands behind another text; the lines of both are the units.
    start = other.layout.questions[0, 0]
    ids = np.concatenate([other.token_ids[:start], first.token_ids])
    asked = (first.layout.questions[0, 0] + start, first.layout.questions[0, 1] + start)
    units = np.concatenate([np.arange(0, start, 10), [start], first.layout.units[1:] + start]).astype(np.int32)
    layout = relaid(first, protected=[(start - 10, start), asked], question=asked, units=units).layout
    moved = replace(first, request_id="s", token_ids=ids, layout=layout)

    async def both():
        await read_in_windows(pool.engines["replica 0"], first, pool.peers("replica 0"))
        return await read_in_windows(pool.engines["replica 1"], moved, pool.peers("replica 1"))

    scores = run(both())
    assert scores.cached_tokens >= 0.9 * first.layout.questions[0, 0]


@pytest.mark.parametrize("what", ["broken", "full"])
def test_the_windows_of_a_replica_that_does_not_read_them_are_read_here(demo_speculator, caplog, what):
    request, pool = asking(), Pool(demo_speculator, 3, ms_per_token=0.01, **{what: ["replica 1"]})
    scores, _ = read(pool, request)
    assert np.array_equal(scores.importance, one_replica(demo_speculator, request))
    assert "another replica does not read its windows" in caplog.text
    alone = pool.engines["replica 1"].started
    here, elsewhere = (pool.engines[name].started for name in ("replica 0", "replica 2"))
    assert alone == 0
    assert here > 1.5 * elsewhere


def test_a_replica_that_has_begun_is_waited_for(demo_speculator):
    pool = Pool(demo_speculator, 2, slow=["replica 1"])
    _, seconds = read(pool, asking())
    assert seconds == pytest.approx(100, abs=5)
    assert pool.engines["replica 1"].started > 0


def test_a_client_that_leaves_ends_the_read_everywhere(demo_speculator):
    pool = Pool(demo_speculator, 3, ms_per_token=1.0)

    async def leave():
        task = asyncio.create_task(read_in_windows(pool.engines["replica 0"], asking(), pool.peers("replica 0")))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0)

    run(leave())
    assert sorted(pool.ended) == ["replica 1", "replica 2"]
    assert [engine.running for engine in pool.engines.values()] == [0, 0, 0]
    assert all(engine.aborted for engine in pool.engines.values())


def test_a_window_that_fails_here_ends_the_read_everywhere(demo_speculator):
    pool = Pool(demo_speculator, 2, ms_per_token=1.0)
    pool.engines["replica 0"].close()
    with pytest.raises(EngineUnavailableError):
        read(pool, asking())
    assert pool.ended == ["replica 1"]


def test_a_replica_that_is_not_among_those_that_serve_reads_alone(demo_speculator):
    pool = Pool(demo_speculator, 2)
    home = MockSpeculator(demo_speculator)
    run(read_in_windows(home, asking(), pool.peers("replica 9")))
    assert home.started > 30
    assert [engine.started for engine in pool.engines.values()] == [0, 0]


async def test_another_speculator_does_not_read(demo_speculator):
    service = SpeculatorService(MockSpeculator(demo_speculator, head_profile=True))
    request = WindowsRequest(
        "r", service.info.path, np.arange(9, dtype=np.int32), np.array([4, 9], np.int32), *ASKED, FRAME, OPTIONS
    )
    assert (await service.read_windows(request)).importance.size == 9
    with pytest.raises(SkimError, match="another speculator"):
        await service.read_windows(replace(request, model="other"))
    service.engine.info = replace(service.engine.info, has_head_profile=False)
    with pytest.raises(SkimError, match="another speculator"):
        await service.read_windows(request)
    # Other heads: the reader's, the asker's, or an asker that does not name its own.
    for asker, reader in (("b", "a"), ("", "a"), ("a", "")):
        service.engine.info = replace(service.engine.info, has_head_profile=True, heads=reader)
        with pytest.raises(SkimError, match="other heads"):
            await service.read_windows(replace(request, heads=asker))
    service.engine.info = replace(service.engine.info, heads="a")
    assert (await service.read_windows(replace(request, heads="a"))).importance.size == 9


def test_windows_are_read_here_if_another_replica_has_other_heads(demo_speculator, caplog):
    """During a change of the profile, or where each machine has found its own."""
    request, pool = asking(), Pool(demo_speculator, 3)
    for engine, heads in zip(pool.engines.values(), ("new", "old", "new"), strict=True):
        engine.info = replace(engine.info, heads=heads)
    scores, _ = read(pool, request)
    assert np.array_equal(scores.importance, one_replica(demo_speculator, request))
    here, other, same = (engine.started for engine in pool.engines.values())
    assert (other, here > same > 0) == (0, True)
    assert "give all replicas one profile" in caplog.text


def test_windows_divide_their_tokens():
    for ends in ([4, 8], [9, 4], [4, 4, 9], []):
        with pytest.raises(ValueError, match="the windows must divide the 9 tokens"):
            WindowsRequest("r", "m", np.arange(9), np.array(ends, np.int32), *ASKED, FRAME, OPTIONS)
