"""Baselines keep as many tokens as the speculator and all protected ones. Filling by the speculator's scores gives the
selection of serving.
"""

from dataclasses import replace

import numpy as np
import pytest

from evals.selection.prompts import render
from evals.selection.selectors import SELECTORS, Reading, fill
from kv_transfer.options import SelectionOptions
from router.options.request import PrefillOptions
from skim.engines import EngineSettings, PairEngines
from skim_common.errors import SkimError
from speculator_service.selection.select import select
from speculator_service.selection.units import unit_means
from tests.unit.evals.conftest import MODELS
from tests.unit.kv_transfer.layouts import layout_of

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANY_LENGTH = PrefillOptions(min_prompt_tokens=1)


@pytest.fixture(scope="module")
def sample(made):
    return made("multi_key", style="plain")[0]


@pytest.fixture(scope="module")
def prompt(sample, tokenizer):
    return render(sample, tokenizer, ANY_LENGTH)


@pytest.fixture(scope="module")
def keep(sample, prompt):
    """Keeps a sample's prompt by the selector of a name, beside the speculator's selection: a mock engine's."""
    pair = PairEngines(speculator=EngineSettings(str(MODELS / "speculator"), "mock"))

    async def keep(name, rate, sample=sample, prompt=prompt):
        # Baselines rank chunks, so the budget is one of chunks.
        options = PrefillOptions(keep_rate=rate, granularity="chunk")
        reading = Reading(sample, prompt, prompt.layout(options), options, pair)
        chosen = await reading.select()
        return await SELECTORS[name].keep(replace(reading, chosen=chosen)), chosen

    return keep


FOLLOWING = [name for name, selector in SELECTORS.items() if selector.follows]


@pytest.mark.parametrize("rate", [0.05, 0.2, 0.5])
@pytest.mark.parametrize("name", FOLLOWING)
async def test_a_baseline_keeps_as_much_and_what_is_protected(name, rate, keep, prompt, tokenizer, sample):
    found, chosen = await keep(name, rate)
    assert found.token_ids.size == chosen.token_ids.size
    assert sample.quiz.question in tokenizer.decode(found.token_ids)
    if name != "renumbered":
        assert (found.token_ids == prompt.token_ids[found.positions]).all()
        assert found.context_length == prompt.token_ids.size
        for start, end in prompt.layout(ANY_LENGTH).protected:
            assert set(range(start, end)) <= set(found.positions.tolist())


async def test_the_oracle_keeps_the_evidence_and_random_chunks_do_not(keep, sample, tokenizer):
    [needle] = sample.quiz.evidence
    oracle, _ = await keep("oracle", 0.05)
    random, _ = await keep("random", 0.05)
    assert needle in tokenizer.decode(oracle.token_ids)
    assert needle not in tokenizer.decode(random.token_ids)


async def test_bm25_finds_shared_words_and_no_others(keep, sample, made, tokenizer):
    """The needle of `multi_key` has the words of its question; that of `association` has none of them."""
    found, _ = await keep("bm25", 0.05)
    assert sample.quiz.evidence[0] in tokenizer.decode(found.token_ids)
    kept = []
    for other in made("association", count=12):
        prompt = render(other, tokenizer, ANY_LENGTH)
        always = prompt.layout(ANY_LENGTH).fixed(prompt.size, 1)
        if other.quiz.evidence[0] in tokenizer.decode(prompt.token_ids[always]):
            continue  # it stands beside the question, as a line of speech does
        found, _ = await keep("bm25", 0.05, other, prompt)
        kept.append(other.quiz.evidence[0] in tokenizer.decode(found.token_ids))
    assert len(kept) >= 3
    assert not any(kept)


async def test_an_embedding_ranks_by_meaning(keep, sample, tokenizer):
    found, _ = await keep("embedding", 0.3)
    assert sample.quiz.expected[0] in tokenizer.decode(found.token_ids)


async def test_the_guard_runs_a_count_dense_and_compresses_a_needle(keep, made, tokenizer, sample, prompt):
    [count] = made("counting", style="plain", seed=1)
    whole = render(count, tokenizer, ANY_LENGTH)
    dense, _ = await keep("auto + guard", 0.2, count, whole)
    assert dense.is_dense
    compressed, _ = await keep("auto + guard", 0.2, sample, prompt)
    assert not compressed.is_dense
    unguarded, _ = await keep("auto", 0.2, count, whole)
    assert not unguarded.is_dense


async def test_renumbering_keeps_tokens_and_forgets_their_places(keep):
    renumbered, restored = await keep("renumbered", 0.2)
    assert (renumbered.token_ids == restored.token_ids).all()
    assert renumbered.positions.tolist() == list(range(restored.token_ids.size))
    assert renumbered.context_length == restored.token_ids.size < restored.context_length


async def test_windows_lie_where_they_say(keep, prompt):
    size = prompt.token_ids.size
    last = (await keep("last window", 0.3))[0].positions
    # The first three tokens belong to the template, and a chunk that is kept in part leaves a gap.
    assert (last[3:] > size - last.size - 32).all()
    ends = (await keep("first + last", 0.3))[0].positions
    middle = (ends > 0.25 * size) & (ends < 0.75 * size)
    assert not middle.any()
    assert ((ends < size / 2).sum() - (ends > size / 2).sum()) in range(-96, 33)


async def test_random_chunks_follow_from_the_seed(keep, made, tokenizer):
    async def random(seed):
        sample = made("multi_key", seed=seed, style="plain")[0]
        found, _ = await keep("random", 0.2, sample, render(sample, tokenizer, ANY_LENGTH))
        return found.positions.tolist()

    assert await random(3) == await random(3) != await random(4)


@pytest.mark.parametrize("size", [1000, 1024])
@pytest.mark.parametrize("keep_rate", [0.05, 0.1, 0.5, 0.9])
async def test_filling_by_the_speculators_scores_is_its_selection(keep_rate, size):
    """The budget rule favours no selector: the same scores keep the same tokens."""
    importance = np.random.default_rng(0).random(size, np.float32)
    options, spans = SelectionOptions(keep_rate=keep_rate), [(0, 1), (size - 60, size - 20), (300, 310)]
    chosen, _ = select(importance, options, layout_of(spans))
    always = np.zeros(size, bool)
    for start, end in [*spans, (size - options.protect_last, size)]:
        always[start:end] = True
    preference = unit_means(importance, np.arange(0, importance.size, options.chunk_size))
    assert fill(preference, always, chosen.size, options.chunk_size).tolist() == chosen.tolist()


async def test_what_serving_would_not_compress_is_refused(made, tokenizer):
    [sample] = made("multi_key", length=400, style="plain")
    with pytest.raises(SkimError, match=r"would run dense \(short-prompt\): ask for longer --lengths"):
        render(sample, tokenizer, PrefillOptions())
