"""The choice between Triton kernels and torch; pieces of keys and tiles of weights do not change the scores."""

import logging
import sys

import pytest
import torch

from speculator_service.scoring import importance
from speculator_service.scoring.importance import AttentionFormula, layer_scores, score_table
from speculator_service.scoring.paged import Kernels, PagedScoring, kernels_for
from tests.unit.speculator_service.scoring.paged_keys import random_keys

PROMPT, STEPS, HEADS, SIZE, LAYERS = 100, 3, 4, 16, 2
FORMULAS = [AttentionFormula(0.25)] * LAYERS
SINKS = torch.tensor([-1.0, 0.0, 1.0, 2.0])


@pytest.fixture
def queries():
    return 2 * torch.randn(LAYERS, STEPS, HEADS, SIZE, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def keys():
    return random_keys(LAYERS, prompt=PROMPT)


def by_torch(queries, keys, formulas=FORMULAS):
    """The table from each layer's whole keys."""
    scores = [
        layer_scores(q, k.whole(), f.scale, 13, soft_cap=f.soft_cap, sinks=f.sinks)
        for q, k, f in zip(queries, keys, formulas, strict=True)
    ]
    return torch.stack(scores).amax(0, keepdim=True)


def filled(scoring_, queries, keys, formulas=FORMULAS):
    table = score_table("max", layers=LAYERS, steps=STEPS, prompt=PROMPT)
    scoring_.fill(table, queries, keys, formulas)
    return table


def ones(table, *arguments, **formula):
    """A kernel whose result differs from torch's."""
    table.fill_(1.0)


def breaks_halfway(table, *arguments, **formula):
    table[..., : PROMPT // 2] = 1.0
    raise RuntimeError("out of resource: shared memory\nRequired: 300000")


YES, NO = (lambda *_: True), (lambda *_: False)
NO_STEPS = lambda group: []  # noqa: E731


@pytest.mark.parametrize("tile", [1, 400, 2**18])
@pytest.mark.parametrize("step", [1, 2, 100])
@pytest.mark.parametrize("kernel", [1, 3, 13, 201])
def test_pieces_and_tiles_change_nothing(queries, keys, tile, step, kernel, monkeypatch):
    keys[0].step = step
    monkeypatch.setattr(importance, "TILE_ELEMENTS", tile)
    found = layer_scores(queries[0], keys[0], 0.25, kernel)
    weights = torch.einsum("shd,hmd->shm", queries[0], keys[0].whole().repeat_interleave(2, 0)).mul(0.25).softmax(-1)
    pooled = torch.nn.functional.avg_pool1d(weights, kernel, 1, kernel // 2)
    torch.testing.assert_close(found, pooled.amax(1), atol=1e-6, rtol=1e-5)


def test_kernels_do_all_layers_at_once(queries, keys):
    calls = []

    def fill_table(table, *arguments, **formula):
        table.fill_(1.0)
        calls.append((*arguments, formula))

    formulas = [AttentionFormula(0.25, 3.0, SINKS), AttentionFormula(0.25, 3.0, 2 * SINKS)]
    assert (filled(PagedScoring(Kernels(YES, fill_table, NO_STEPS, None)), queries, keys, formulas) == 1).all()
    [(given, caches, blocks, scale, pool, formula)] = calls
    assert given is queries
    assert [cache.data_ptr() for cache in caches] == [layer.memory.data_ptr() for layer in keys]
    assert blocks.dtype == torch.int32
    assert (blocks.tolist(), scale, pool) == (keys[0].blocks.tolist(), 0.25, 13)
    assert formula["soft_cap"] == 3.0
    assert torch.equal(formula["sinks"], torch.stack([SINKS, 2 * SINKS]))


def test_without_kernels_torch_scores(queries, keys):
    torch.testing.assert_close(filled(PagedScoring(None), queries, keys), by_torch(queries, keys))


def test_failing_kernels_are_replaced_for_good_with_one_warning(queries, keys, caplog):
    broken = PagedScoring(Kernels(YES, breaks_halfway, NO_STEPS, None))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.testing.assert_close(filled(broken, queries, keys), by_torch(queries, keys))
    assert broken.kernels is None
    [warning] = caplog.messages
    assert warning.endswith("which do not run here: out of resource: shared memory")


def test_torch_scores_what_the_kernels_do_not_support_and_they_stay(queries, keys, caplog):
    class Packed(type(keys[0])):
        pages = None

    packed = [Packed(k.memory, k.blocks, k.length) for k in keys]
    chosen = PagedScoring(Kernels(YES, ones, NO_STEPS, None))
    plain = AttentionFormula(0.25)
    others = [
        [plain, AttentionFormula(0.5)],
        [AttentionFormula(0.25, 3.0), plain],
        [plain._replace(sinks=SINKS), plain],
    ]
    for given, formulas in ((packed, FORMULAS), *((keys, other) for other in others)):
        torch.testing.assert_close(filled(chosen, queries, given, formulas), by_torch(queries, keys, formulas))
    half = queries.half()
    torch.testing.assert_close(filled(chosen, half, keys), by_torch(half, keys))
    torch.testing.assert_close(
        filled(PagedScoring(Kernels(NO, ones, NO_STEPS, None)), queries, keys), by_torch(queries, keys)
    )
    assert chosen.kernels is not None
    assert caplog.messages == []


def test_kernels_are_for_cuda():
    pytest.importorskip("triton")
    from speculator_service.scoring.triton_kernels import fill_table
    from speculator_service.scoring.triton_masses import weighted_masses

    assert kernels_for(torch.device("cpu")) is None
    found = kernels_for(torch.device("cuda"))
    assert found is not None
    assert found.fill_table is fill_table
    assert found.weighted_masses is weighted_masses


@pytest.mark.parametrize("group", [1, 3, 4, 8, 32, 64, 100])
def test_the_step_counts_of_the_start_need_every_variant_of_the_kernels(group):
    pytest.importorskip("triton")
    from speculator_service.scoring.triton_kernels import TILING, _steps_at_once, padded_rows, step_counts

    def variant(steps):
        at_once = _steps_at_once(steps, 1 << (group - 1).bit_length(), TILING.rows)
        return padded_rows(torch.zeros(1, steps, group, 16), 1, at_once)[1][1:]

    at_start = {variant(steps) for steps in step_counts(group)}
    assert {variant(steps) for steps in range(1, 66)} == at_start
    assert len(at_start) == len(step_counts(group))


def test_without_triton_a_cuda_worker_says_so_once(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "speculator_service.scoring.triton_kernels", None)
    with caplog.at_level(logging.WARNING):
        assert kernels_for(torch.device("cuda")) is None
    assert len(caplog.messages) == 1
