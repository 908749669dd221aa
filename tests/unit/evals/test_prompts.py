"""All selectors keep the same number of tokens and all protected ones. Filling by the speculator's scores gives the
selection of serving.
"""

import numpy as np
import pytest
import torch

from evals.prompts import SELECTORS, fill, kept_prompts, render
from evals.tasks import make_samples
from kv_transfer.errors import SkimError
from kv_transfer.options import SelectionOptions
from router.options import PrefillOptions
from speculator_service.scoring.selection import select


@pytest.fixture(scope="module")
def sample(tokens):
    [sample] = make_samples(["multi_key"], [1024], 1, seed=0, style="plain", tokens=tokens)
    return sample


@pytest.fixture(scope="module")
def prompt(sample, tokenizer):
    return render(sample, tokenizer, PrefillOptions())


def scores(prompt, seed):
    return torch.from_numpy(np.random.default_rng(seed).random(prompt.token_ids.size, np.float32))


@pytest.fixture(params=[0.05, 0.2, 0.5])
def kept(prompt, request):
    return kept_prompts(prompt, scores(prompt, 1), scores(prompt, 2), SelectionOptions(keep_rate=request.param), seed=3)


def test_all_keep_as_much_and_what_is_protected(kept, prompt, tokenizer, sample):
    assert list(kept) == list(SELECTORS)
    assert {k.token_ids.size for k in kept.values()} == {kept["speculator"].token_ids.size}
    for name, found in kept.items():
        if name != "renumbered":
            assert (found.token_ids == prompt.token_ids[found.positions]).all()
            assert found.context_length == prompt.token_ids.size
            for start, end in prompt.protected:
                assert set(range(start, end)) <= set(found.positions.tolist())
        assert sample.quiz.question in tokenizer.decode(found.token_ids)


def test_renumbering_keeps_tokens_and_forgets_their_places(kept):
    renumbered, restored = kept["renumbered"], kept["speculator"]
    assert (renumbered.token_ids == restored.token_ids).all()
    assert renumbered.positions.tolist() == list(range(restored.token_ids.size))
    assert renumbered.context_length == restored.token_ids.size < restored.context_length


def test_windows_lie_where_they_say(prompt):
    kept = kept_prompts(prompt, scores(prompt, 1), scores(prompt, 2), SelectionOptions(keep_rate=0.3), seed=3)
    size = prompt.token_ids.size
    last = kept["last window"].positions
    # The first three tokens belong to the template, and a chunk that is kept in part leaves a gap.
    assert (last[3:] > size - last.size - 32).all()
    ends = kept["first + last"].positions
    middle = (ends > 0.25 * size) & (ends < 0.75 * size)
    assert not middle.any()
    assert ((ends < size / 2).sum() - (ends > size / 2).sum()) in range(-96, 33)


def test_random_chunks_follow_from_the_seed(prompt):
    def random(seed):
        options = SelectionOptions(keep_rate=0.2)
        kept = kept_prompts(prompt, scores(prompt, 1), scores(prompt, 2), options, seed)
        return kept["random"].positions.tolist()

    assert random(3) == random(3) != random(4)


@pytest.mark.parametrize("size", [1000, 1024])
@pytest.mark.parametrize("keep_rate", [0.05, 0.1, 0.5, 0.9])
def test_filling_by_the_speculators_scores_is_its_selection(keep_rate, size):
    """The budget rule favours no selector: the same scores keep the same tokens."""
    importance = torch.from_numpy(np.random.default_rng(0).random(size, np.float32))
    options, spans = SelectionOptions(keep_rate=keep_rate), [(0, 1), (size - 60, size - 20), (300, 310)]
    chosen, _ = select(importance, options, spans)
    always = np.zeros(size, bool)
    for start, end in [*spans, (size - options.protect_last, size)]:
        always[start:end] = True
    filled = fill(importance.double().numpy(), always, chosen.numel(), options.chunk_size)
    assert filled.tolist() == chosen.tolist()


def test_what_serving_would_not_compress_is_refused(tokens, tokenizer):
    [sample] = make_samples(["multi_key"], [400], 1, seed=0, style="plain", tokens=tokens)
    with pytest.raises(SkimError, match=r"would run dense \(short-prompt\): ask for longer --lengths"):
        render(sample, tokenizer, PrefillOptions())
