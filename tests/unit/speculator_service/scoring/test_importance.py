import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculator_service.scoring import importance
from speculator_service.scoring.importance import (
    add_layer,
    layer_scores,
    score_table,
    scored_layers,
    total,
    valid_steps,
)

# The toy layer of the worked example: 4 query heads on 2 key-value heads, 3 prompt tokens, head size 2.
TOY_QUERIES = torch.tensor([[[1.0, 0], [0, 1], [1, 1], [2, 1]]])
TOY_KEYS = torch.tensor([[[1.0, 0], [0, 1], [1, 1]], [[1, 2], [0, 2], [2, 2]]])


def table_of(per_layer, aggregation):
    steps, prompt = per_layer[0].shape
    table = score_table(aggregation, layers=len(per_layer), steps=steps, prompt=prompt)
    for layer, scores in enumerate(per_layer):
        add_layer(table, layer, scores)
    return table


def importance_of(per_layer, aggregation, valid):
    return total(table_of(per_layer, aggregation), valid) / valid.sum()


def naive_importance(queries, keys, scale, kernel, aggregation, valid, *, soft_cap=0.0, sinks=None):
    """The paper's scoring in plain loops. queries: [L, S, H, D], keys: [L, G, M, D], valid: bools [S], sinks: [H]."""
    layers, steps, heads, _ = queries.shape
    _, kv_heads, prompt, _ = keys.shape
    importance = [0.0] * prompt
    counted = [s for s in range(steps) if valid[s]]
    for s in counted:
        per_layer = []
        for layer in range(layers):
            head_max = [0.0] * prompt
            for h in range(heads):
                group = h // (heads // kv_heads)
                dots = [float(queries[layer, s, h] @ keys[layer, group, m]) * scale for m in range(prompt)]
                if soft_cap:
                    dots = [soft_cap * math.tanh(d / soft_cap) for d in dots]
                others = [] if sinks is None else [float(sinks[h])]
                top = max(dots + others)
                exp = [math.exp(d - top) for d in dots]
                weights = [e / (sum(exp) + sum(math.exp(o - top) for o in others)) for e in exp]
                for m in range(prompt):
                    window = range(max(0, m - kernel // 2), min(prompt, m + kernel // 2 + 1))
                    head_max[m] = max(head_max[m], sum(weights[w] for w in window) / kernel)
            per_layer.append(head_max)
        for m in range(prompt):
            column = [head_max[m] for head_max in per_layer]
            step = max(column) if aggregation == "max" else sum(column) / layers
            importance[m] += step / len(counted)
    return torch.tensor(importance)


@st.composite
def attention(draw):
    kv_heads, group = draw(st.sampled_from([(1, 1), (1, 4), (2, 1), (2, 3), (4, 1)]))  # MHA, MQA, GQA
    layers, steps, prompt, size = (draw(st.integers(1, n)) for n in (3, 4, 20, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    queries = 3 * torch.randn(layers, steps, kv_heads * group, size, generator=generator)
    keys = torch.randn(layers, kv_heads, prompt, size, generator=generator)
    valid = torch.tensor([True, *draw(st.lists(st.booleans(), min_size=steps - 1, max_size=steps - 1))])
    return queries, keys, valid


@given(attention(), st.sampled_from([1, 3, 13, 51]), st.sampled_from(["max", "head_max_layer_mean"]))
def test_equals_the_naive_loops(problem, kernel, aggregation):
    queries, keys, valid = problem
    scale = keys.shape[-1] ** -0.5
    scores = [layer_scores(q, k, scale, kernel) for q, k in zip(queries, keys, strict=True)]
    importance = importance_of(scores, aggregation, valid)
    expected = naive_importance(queries, keys, scale, kernel, aggregation, valid)
    torch.testing.assert_close(importance, expected, atol=1e-6, rtol=1e-5)


def test_the_total_of_groups_of_steps_is_that_of_all():
    scores = torch.rand(5, 7)
    valid = torch.tensor([True, False, True, True, False])
    whole = total(table_of([scores], "max"), valid)
    parts = [total(table_of([scores[rows]], "max"), valid[rows]) for rows in (slice(0, 2), slice(2, 5))]
    torch.testing.assert_close(sum(parts), whole)
    torch.testing.assert_close(whole / 3, importance_of([scores], "max", valid))
    assert not total(table_of([scores], "max"), torch.zeros(5, dtype=torch.bool)).any()


@settings(deadline=None, max_examples=30)
@given(attention(), st.sampled_from([0.0, 0.5, 30.0]), st.booleans())
def test_soft_cap_and_sinks_equal_the_naive_loops(problem, soft_cap, has_sinks):
    queries, keys, valid = problem
    sinks = torch.linspace(-3, 3, queries.shape[2]) if has_sinks else None
    scores = [layer_scores(q, k, 0.5, 3, soft_cap=soft_cap, sinks=sinks) for q, k in zip(queries, keys, strict=True)]
    importance = importance_of(scores, "max", valid)
    expected = naive_importance(queries, keys, 0.5, 3, "max", valid, soft_cap=soft_cap, sinks=sinks)
    torch.testing.assert_close(importance, expected, atol=1e-6, rtol=1e-5)


def test_sinks_belong_to_their_heads_in_small_blocks_too(monkeypatch):
    queries, keys, sinks = torch.randn(3, 8, 16), torch.randn(2, 40, 16), torch.linspace(-4, 4, 8)
    expected = layer_scores(queries, keys, 0.25, 1, sinks=sinks)
    assert (layer_scores(queries, keys, 0.25, 1, sinks=sinks.flip(0)) - expected).abs().max() > 0.01
    monkeypatch.setattr(importance, "BLOCK_ELEMENTS", 1)
    torch.testing.assert_close(layer_scores(queries, keys, 0.25, 1, sinks=sinks), expected)


def test_worked_example_head_max():
    scores = layer_scores(TOY_QUERIES, TOY_KEYS, 2**-0.5, 1)
    for aggregation in ("max", "head_max_layer_mean"):
        importance = importance_of([scores], aggregation, torch.tensor([True]))
        assert importance.tolist() == pytest.approx([0.401, 0.401, 0.768], abs=5e-4)


def test_wrong_gqa_mapping_would_be_seen():
    # h % G instead of h // (H / G)
    shuffled = TOY_QUERIES[:, [0, 2, 1, 3]]
    right, wrong = (layer_scores(q, TOY_KEYS, 2**-0.5, 1) for q in (TOY_QUERIES, shuffled))
    assert (right - wrong).abs().max() > 0.05


def test_worked_example_three_step_means():
    # The worked example gives step 0 completely and position 1 for each step; the other values follow from the means.
    means = torch.tensor([0.2321, 0.3021, 0.2894, 0.2552, 0.2060, 0.1163])
    step0 = torch.tensor([0.2974, 0.2974, 0.2681, 0.2857, 0.2136, 0.1266])
    step1 = torch.tensor([0.1995, 0.2952, 0.2900, 0.2400, 0.2022, 0.1100])
    scores = torch.stack([step0, step1, 3 * means - step0 - step1])
    importance = importance_of([scores], "max", torch.ones(3, dtype=torch.bool))
    assert importance.tolist() == pytest.approx(means.tolist(), abs=5e-5)


def test_pooling_counts_zeros_outside_the_prompt():
    # The worked example's first row: P = [0.0924, 0.7706, ...] gives 0.2877 = (0 + 0.0924 + 0.7706) / 3 at the edge.
    weights = torch.tensor([0.0924, 0.7706, 0.0225, 0.0111, 0.0111, 0.0924])
    scores = layer_scores(torch.ones(1, 1, 1), weights.log().view(1, 6, 1), 1.0, 3)[0]
    assert scores.tolist() == pytest.approx([0.2877, 0.2952, 0.2681, 0.0149, 0.0382, 0.0345], abs=1e-4)


def test_one_token_prompt():
    for kernel in (1, 5):
        scores = layer_scores(torch.randn(3, 4, 8), torch.randn(2, 1, 8), 1.0, kernel)
        torch.testing.assert_close(scores, torch.full((3, 1), 1 / kernel))


def test_float32_whatever_the_inputs():
    queries, keys = 100 * torch.randn(2, 4, 64), 100 * torch.randn(2, 50, 64)
    low = layer_scores(queries.bfloat16(), keys.bfloat16(), 0.125, 13)
    assert low.dtype == torch.float32
    assert torch.equal(low, layer_scores(queries.bfloat16().float(), keys.bfloat16().float(), 0.125, 13))


def test_strided_keys_and_small_blocks_change_nothing(monkeypatch):
    queries, keys = torch.randn(3, 8, 16), torch.randn(2, 40, 16)
    expected = layer_scores(queries, keys, 0.25, 13)
    packed = keys.transpose(1, 2).contiguous().transpose(1, 2)
    assert not packed.is_contiguous()
    torch.testing.assert_close(layer_scores(queries, packed, 0.25, 13), expected)
    monkeypatch.setattr(importance, "BLOCK_ELEMENTS", 1)
    torch.testing.assert_close(layer_scores(queries, keys, 0.25, 13), expected)


def test_attention_weights_in_memory_stay_below_the_block(monkeypatch):
    monkeypatch.setattr(importance, "BLOCK_ELEMENTS", 2 * 3 * 100)
    seen = []
    softmax = torch.softmax
    monkeypatch.setattr(torch, "softmax", lambda x, **kw: seen.append(x.numel()) or softmax(x, **kw))
    layer_scores(torch.randn(3, 16, 4), torch.randn(2, 100, 4), 0.5, 1)
    assert seen == [2 * 3 * 100] * 8


@pytest.mark.parametrize("aggregation", ["max", "head_max_layer_mean"])
def test_tensor_parallel_ranks_agree_with_one(aggregation):
    queries, keys = 3 * torch.randn(3, 4, 8, 16), torch.randn(3, 4, 30, 16)
    valid = torch.tensor([True, True, True, False])

    def table(heads, kv_heads):
        scores = [layer_scores(q[:, heads], k[kv_heads], 0.25, 5) for q, k in zip(queries, keys, strict=True)]
        return table_of(scores, aggregation)

    whole = total(table(slice(None), slice(None)), valid)
    ranks = [table(slice(4 * r, 4 * r + 4), slice(2 * r, 2 * r + 2)) for r in range(2)]
    # The maximum over ranks must come before the mean over steps; this is why the table exists.
    late = torch.maximum(*(total(rank, valid) for rank in ranks))
    assert not torch.allclose(late, whole, rtol=1e-3)
    reduced = torch.maximum(*ranks)  # all_reduce(MAX)
    torch.testing.assert_close(total(reduced, valid), whole)


def test_aggregations_differ():
    scores = list(torch.rand(3, 2, 10))
    valid = torch.ones(2, dtype=torch.bool)
    highest, mean = (importance_of(scores, a, valid) for a in ("max", "head_max_layer_mean"))
    assert (highest > mean).all()


def test_masked_steps_are_ignored():
    scores = torch.rand(4, 10)
    short = importance_of([scores[:2]], "max", torch.ones(2, dtype=torch.bool))
    for garbage in (0.9, math.nan):
        scores[2:] = garbage
        valid = torch.tensor([True, True, False, False])
        assert torch.equal(importance_of([scores.clone()], "max", valid), short)
    unmasked = importance_of([torch.rand(4, 10) + scores[:1]], "max", torch.ones(4, dtype=torch.bool))
    assert not torch.allclose(unmasked, short, rtol=1e-2)


@pytest.mark.parametrize(
    ("tokens", "eos", "expected"),
    [
        ([], {5}, [1]),
        ([7, 8], {5}, [1, 1, 1]),
        ([7, 8], set(), [1, 1, 1]),
        ([5, 8], {5}, [1, 0, 0]),
        ([7, 5, 8, 5], {5}, [1, 1, 0, 0, 0]),
        ([7, 8, 6], {5, 6}, [1, 1, 1, 0]),
    ],
)
def test_steps_after_an_eos_are_masked(tokens, eos, expected):
    assert valid_steps(torch.tensor(tokens, dtype=torch.int32), eos).tolist() == [bool(v) for v in expected]


def test_scored_layers():
    assert list(scored_layers(6, "all")) == [0, 1, 2, 3, 4, 5]
    assert list(scored_layers(6, "last4")) == [2, 3, 4, 5]
    assert scored_layers(24, "last_half") == range(12, 24)
    assert scored_layers(31, "last_half") == range(15, 31)
    assert [list(scored_layers(n, "last_half")) for n in (2, 4, 6)] == [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5]]
    assert list(scored_layers(2, "last4")) == [0, 1]
    assert list(scored_layers(6, "last1")) == [5]


def test_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match="do not fit"):
        layer_scores(torch.ones(1, 3, 4), torch.ones(2, 5, 4), 1.0, 1)
    with pytest.raises(ValueError, match="do not fit"):
        layer_scores(torch.ones(1, 2, 4), torch.ones(2, 5, 8), 1.0, 1)
    with pytest.raises(ValueError, match="odd"):
        layer_scores(torch.ones(1, 2, 4), torch.ones(2, 5, 4), 1.0, 2)
