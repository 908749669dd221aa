"""Chunk recall with scores that are known."""

import numpy as np

from benchmarks.mock_engines.speculator import MockSpeculator
from evals.selection.chunk_recall import WAYS, chunk_recall, kept_share, mean
from kv_transfer.options import SelectionOptions
from tests.unit.evals.conftest import MODELS
from tests.unit.kv_transfer.layouts import layout_of

RATES = [0.1, 0.4]


def test_the_kept_share_of_the_evidence_counts_its_tokens():
    importance = np.zeros(640, np.float32)
    importance[320:352] = 1.0
    options, layout = SelectionOptions(keep_rate=0.05), layout_of([(0, 1)])
    assert kept_share(layout, [(325, 340)], importance, options) == 1.0
    assert kept_share(layout, [(325, 340), (353, 360)], importance, options) == 15 / 22
    assert kept_share(layout, [(340, 353)], importance, options) == 12 / 13
    assert kept_share(layout, [(0, 1), (630, 640)], importance, options) == 1.0  # protected, and at the end


def test_the_ways_are_valid_and_differ():
    options = [SelectionOptions(**way) for way in WAYS.values()]
    assert len({option.model_dump_json() for option in options}) == len(WAYS)


async def test_shared_words_are_found_and_random_scores_find_less(made, tokenizer):
    samples = [*made("single_needle", count=8), *made("multi_key", count=8)]
    ways = {"random": SelectionOptions(granularity="chunk"), "lexical": SelectionOptions(selector="lexical")}
    found = await chunk_recall(MockSpeculator(str(MODELS / "target")), tokenizer, samples, ways, RATES)
    assert found["lexical"].keys() == {"single_needle", "multi_key"}
    assert [len(kept) for kept in found["lexical"]["multi_key"].values()] == [8, 8]
    assert mean(found, "lexical", 0.4) > 0.8
    assert mean(found, "lexical", 0.4) >= mean(found, "lexical", 0.1)
    assert mean(found, "random", 0.1) < mean(found, "lexical", 0.1)
