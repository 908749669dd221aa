"""The distribution that drafts are sampled from, with logits only: no engine is started."""

import pytest
import torch

from skim_common.errors import SkimError
from speculator_service.vllm_backend import sampling, sessions


def test_ties_do_not_widen_the_top():
    """With logits rounded to bfloat16, vLLM's top-k keeps more than k. Ours keeps k; other rows do not change."""
    logits = torch.randn(4, 5000, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    k = torch.tensor([32, 1, 5000, 512])
    kept = sampling.exact_top_k(logits.clone(), k, None)
    assert kept.isfinite().sum(1).tolist() == [32, 1, 5000, 512]
    for row, count in enumerate(k.tolist()):
        assert torch.equal(kept[row].topk(count).values, logits[row].topk(count).values)
    theirs = sampling._vllm_top_k_top_p(logits.clone(), k, None)
    assert theirs[3].isfinite().sum() > 512


def test_a_vocabulary_smaller_than_the_widest_top():
    kept = sampling.exact_top_k(torch.arange(7.0).expand(2, 7).clone(), torch.tensor([3, 7]), None)
    assert kept[0].isfinite().tolist() == [False] * 4 + [True] * 3
    assert kept[1].tolist() == list(range(7))


def test_no_token_without_probability_is_drawn():
    logits = torch.full((1000, 50), -torch.inf)
    logits[:, 7] = 0.0
    logits[:, 9] = -3.0
    drawn = sampling.random_sample(logits)
    assert drawn.shape == (1000,)
    assert set(drawn.tolist()) == {7, 9}


def test_a_temperature_that_vllm_takes_for_greedy_needs_no_q():
    asked = ((1e-6, 32, 1000), (0.5, 0, 1000), (0.5, 900, 1000), (0.5, 32, 20))
    params = [sessions.sampling(4, *one, None, (0, 1)) for one in asked]
    assert [(one.temperature, one.logprobs) for one in params] == [(0.0, None), (0.0, None), (0.5, 512), (0.5, 20)]
    assert [one.top_k for one in params] == [0, 0, 512, 20]


@pytest.mark.parametrize("option", ["logprobs_mode", "max_logprobs"])
def test_what_q_depends_on_is_not_an_option(option, tmp_path):
    from speculator_service.vllm_backend.start import start_engine

    with pytest.raises(SkimError, match=f"the speculator engine option '{option}' is set by Skim"):
        start_engine(str(tmp_path), 64, 1, {option: 5})
