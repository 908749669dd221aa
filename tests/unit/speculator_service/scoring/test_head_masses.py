"""The mass of single heads against a reference in numpy, and the choice between Triton kernels and torch."""

import logging

import numpy as np
import pytest
import torch

from speculator_service.scoring import paged as module
from speculator_service.scoring.importance import AttentionFormula
from speculator_service.scoring.paged import HeadsOfLayer, Kernels, PagedScoring, head_masses
from tests.unit.speculator_service.scoring.paged_keys import random_keys

PROMPT, STEPS, SIZE = 100, 5, 16
KV_HEADS = [1, 0, 1]
VISIBLE = torch.tensor([3, 40, 70, 99, 100])
ROWS = torch.tensor([0.1, 0.1, 0.2, 0.1, 0.5])
SINKS = torch.tensor([-1.0, 0.5, 2.0])
PLAIN = (AttentionFormula(0.25), AttentionFormula(0.25))


def random_queries(seed=1):
    return 2 * torch.randn(STEPS, len(KV_HEADS), SIZE, generator=torch.Generator().manual_seed(seed))


def reference(queries, keys, kv_heads, formula, row_weights, visible=None):
    """[n, M] by plain loops in float64."""
    queries, keys = queries.double().numpy(), keys.double().numpy()
    found = np.zeros((len(kv_heads), keys.shape[1]))
    for row, weight in enumerate(row_weights.double().numpy()):
        sees = keys.shape[1] if visible is None else int(visible[row])
        for head, kv_head in enumerate(kv_heads):
            logits = keys[kv_head, :sees] @ queries[row, head] * formula.scale
            if formula.soft_cap:
                logits = formula.soft_cap * np.tanh(logits / formula.soft_cap)
            sink = 0.0 if formula.sinks is None else np.exp(float(formula.sinks[head]))
            found[head, :sees] += weight * np.exp(logits) / (np.exp(logits).sum() + sink)
    return torch.from_numpy(found).float()


@pytest.mark.parametrize("formula", [AttentionFormula(0.25), AttentionFormula(0.25, 2.0, SINKS)])
@pytest.mark.parametrize("visible", [None, VISIBLE])
@pytest.mark.parametrize("block", [1, 2**24])
def test_equals_the_reference(formula, visible, block, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ELEMENTS", block)
    [keys] = random_keys(1, prompt=PROMPT)
    found = head_masses(random_queries(), keys, KV_HEADS, formula, ROWS, visible)
    expected = reference(random_queries(), keys.whole(), KV_HEADS, formula, ROWS, visible)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)


def test_the_mass_of_a_head_is_that_of_its_rows():
    [keys] = random_keys(1, prompt=PROMPT)
    found = head_masses(random_queries(), keys, KV_HEADS, AttentionFormula(0.25), ROWS, VISIBLE)
    torch.testing.assert_close(found.sum(1), torch.ones(len(KV_HEADS)))


def test_only_the_keys_of_these_heads_are_read():
    [keys] = random_keys(1, prompt=PROMPT, kv_heads=4)
    read = []
    pieces = keys.pieces
    keys.pieces = lambda kv_head: read.append(kv_head) or pieces(kv_head)
    head_masses(random_queries(), keys, [3, 1, 3], AttentionFormula(0.25), ROWS)
    assert read == [1, 3]


def test_control_other_heads_have_another_mass():
    [keys] = random_keys(1, prompt=PROMPT)
    right, shuffled = (
        head_masses(random_queries(), keys, kv_heads, AttentionFormula(0.25), ROWS)
        for kv_heads in ([1, 0, 1], [0, 1, 0])
    )
    assert (right - shuffled).abs().max() > 0.01


def layers(formulas=PLAIN):
    """Three heads of one layer and one of another."""
    first, second = random_keys(2, prompt=PROMPT)
    return [
        HeadsOfLayer(random_queries(1), first, KV_HEADS, formulas[0]),
        HeadsOfLayer(random_queries(2)[:, :1], second, [1], formulas[1]),
    ]


HEADS = torch.tensor([0.4, 0.3, 0.2, 0.1])
YES, NO = (lambda *_: True), (lambda *_: False)


def by_torch(given):
    return HEADS @ PagedScoring(None).masses(given, ROWS, VISIBLE)


def test_kernels_get_one_kv_head_at_a_time():
    calls = []

    def weighted_masses(*arguments, **more):
        calls.append((*arguments, more))
        return torch.full((PROMPT,), 3.0)

    formulas = [AttentionFormula(0.25, 0.0, SINKS), AttentionFormula(0.25, 0.0, SINKS[:1])]
    given = layers(formulas)
    scoring = PagedScoring(Kernels(YES, None, None, weighted_masses))
    assert (scoring.weighted_mass(given, HEADS, ROWS, VISIBLE) == 3).all()
    [(queries, caches, blocks, prompt, scale, weights, more)] = calls
    assert queries.shape == (3, STEPS, 2, SIZE)  # KV heads 0 and 1 of the first layer, 1 of the second
    assert torch.equal(queries[1], given[0].queries[:, [0, 2]])
    assert (queries[0, :, 1] == 0).all()
    memories = [given[0].keys.memory[:, :1], given[0].keys.memory[:, 1:], given[1].keys.memory[:, 1:]]
    assert [cache.data_ptr() for cache in caches] == [memory.data_ptr() for memory in memories]
    assert (blocks.dtype, prompt, scale) == (torch.int32, PROMPT, 0.25)
    torch.testing.assert_close(weights[:, 4], 0.5 * torch.tensor([[0.3, 0.0], [0.4, 0.2], [0.1, 0.0]]))
    assert more["sinks"].tolist() == [[0.5, 0.0], [-1.0, 2.0], [-1.0, 0.0]]


def test_torch_takes_what_the_kernels_do_not_support():
    refusing = PagedScoring(Kernels(NO, None, None, None))
    given = layers()
    torch.testing.assert_close(refusing.weighted_mass(given, HEADS, ROWS, VISIBLE), by_torch(given))
    scoring = PagedScoring(Kernels(YES, None, None, None))
    for formulas in (
        [AttentionFormula(0.25), AttentionFormula(0.5)],
        [AttentionFormula(0.25, 0.0, SINKS), AttentionFormula(0.25)],
    ):
        given = layers(formulas)
        torch.testing.assert_close(scoring.weighted_mass(given, HEADS, ROWS, VISIBLE), by_torch(given))


def test_failing_kernels_are_replaced_for_good_with_one_warning(caplog):
    def breaks(*arguments, **more):
        raise RuntimeError("out of resource")

    scoring = PagedScoring(Kernels(YES, None, None, breaks))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            torch.testing.assert_close(scoring.weighted_mass(layers(), HEADS, ROWS, VISIBLE), by_torch(layers()))
    assert scoring.kernels is None
    assert len(caplog.messages) == 1
