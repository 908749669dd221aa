"""BM25 over passages against plain loops, and what the lexical importance is."""

import math

import numpy as np
import pytest

from speculator_service.scoring.lexical import K1, NO_TERM, B, bm25, lexical_importance, passages, with_lexical


def lucene(documents: list[list[int]], terms: set[int]) -> list[float]:
    """BM25 in Lucene's form, by its definition."""
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        total = 0.0
        for term in terms:
            holding = sum(term in other for other in documents)
            rarity = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            count = document.count(term)
            total += rarity * count / (count + K1 * (1 - B + B * len(document) / mean))
        scores.append(total)
    return scores


@pytest.mark.parametrize("tokens", [1, 5, 63, 64, 65, 300])
def test_passages_score_as_bm25_by_its_definition(tokens):
    draw = np.random.default_rng(tokens)
    ids = draw.integers(0, 40, tokens).astype(np.int32)
    terms = np.unique(ids[-5:])
    starts, ends = passages(tokens, 32)
    documents = [ids[a:b].tolist() for a, b in zip(starts, ends, strict=True)]
    np.testing.assert_allclose(bm25(ids, starts, ends, terms), lucene(documents, set(terms.tolist())))


def test_passages_score_as_in_a_maintained_library():
    bm25s = pytest.importorskip("bm25s")
    ids = np.random.default_rng(3).integers(0, 60, 500).astype(np.int32)
    terms = np.unique(ids[-8:])
    starts, ends = passages(500, 32)
    library = bm25s.BM25(k1=K1, b=B, method="lucene")
    documents = [[str(i) for i in ids[a:b]] for a, b in zip(starts, ends, strict=True)]
    library.index(documents, show_progress=False)
    expected = library.get_scores([str(term) for term in terms])
    np.testing.assert_allclose(bm25(ids, starts, ends, terms), expected, rtol=1e-4)


@pytest.mark.parametrize("chunk", [1, 2, 32, 4096])
def test_passages_cover_every_token_and_overlap(chunk):
    starts, ends = passages(1000, chunk)
    held = np.zeros(1000, int)
    for start, end in zip(starts, ends, strict=True):
        held[start:end] += 1
    assert held.min() >= 1
    assert ends[-1] == 1000
    assert (ends > starts).all()


def test_the_importance_of_a_token_is_the_mean_of_its_passages():
    ids = np.random.default_rng(0).integers(0, 40, 300).astype(np.int32)
    starts, ends = passages(300, 32)
    text = ids.copy()
    text[280:290] = NO_TERM
    scores = bm25(text, starts, ends, np.unique(ids[280:290]))
    expected = np.array([scores[(starts <= i) & (i < ends)].mean() for i in range(300)])
    expected /= expected.sum()
    found = lexical_importance(ids, [(280, 290)], 32)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_text_with_the_questions_rare_terms_is_most_important():
    ids = np.arange(1000, 2000, dtype=np.int32)
    ids[::3] = 7  # a frequent term
    ids[[400, 405, 411]] = [1, 2, 3]
    ids[-5:] = [7, 1, 7, 2, 3]
    importance = lexical_importance(ids, [(995, 1000)], 32)
    assert 380 < importance[:900].argmax() < 430
    assert importance[:300].max() < 0.1 * importance[400]  # the frequent term says little


def test_units_of_text_are_the_documents():
    ids = np.arange(1000, 1100, dtype=np.int32)
    ids[[40, 95]] = 1
    units = np.array([0, 38, 45, 90], np.int32)
    importance = lexical_importance(ids, [(94, 100)], 32, units)
    assert np.flatnonzero(importance).tolist() == list(range(38, 45))
    ends = np.array([38, 45, 90, 100])
    text = np.where(np.arange(100) < 94, ids, NO_TERM).astype(np.int32)
    scores = bm25(text, units.astype(np.int64), ends, np.unique(ids[94:]))
    assert importance[40] == pytest.approx(scores[1] / (scores * (ends - units)).sum())


def test_the_sum_has_both_scores_in_their_proportions():
    droppable = np.array([False, True, True, True, False])
    attention, words = np.array([9, 1, 1, 2, 5], np.float32), np.array([3, 0, 3, 0, 0], np.float32)
    found = with_lexical(attention, words, 0.5, droppable)
    assert found.dtype == np.float32
    assert found.tolist() == pytest.approx([9 / 4 + 0.5, 1 / 4, 1 / 4 + 0.5, 2 / 4, 5 / 4])
    nothing = np.zeros(5, np.float32)
    assert with_lexical(attention, nothing, 0.5, droppable).tolist() == pytest.approx((attention / 4).tolist())
    assert with_lexical(nothing, words, 0.5, droppable).tolist() == pytest.approx((words / 6).tolist())
    assert np.isnan(with_lexical(np.full(5, np.nan, np.float32), words, 0.5, droppable)).all()


def test_a_question_of_other_words_finds_nothing():
    ids = np.arange(200, dtype=np.int32)
    importance = lexical_importance(ids, [(190, 200)], 32)
    assert not importance.any()


def test_the_question_is_no_match_for_itself():
    ids = np.arange(400, dtype=np.int32)
    ids[100] = ids[395]
    importance = lexical_importance(ids, [(390, 400)], 32)
    assert importance[100] == importance.max() > 0
    assert not importance[300:].any()


def test_a_token_has_the_best_of_several_questions():
    """A question about other words hides nothing of the first one."""
    ids = np.arange(1000, 2000, dtype=np.int32)
    ids[[400, 401, 700]] = [1, 2, 3]
    ids[-6:] = [1, 2, 2, 3, 4, 5]
    first, second = (995 - 1, 997), (997, 1000)
    alone = [lexical_importance(ids, [asked], 32) for asked in (first, second)]
    assert np.array_equal(lexical_importance(ids, [first, second], 32)[:990], np.maximum(*alone)[:990])
    assert np.array_equal(lexical_importance(ids, [first, (990, 992)], 32)[:990], alone[0][:990])
