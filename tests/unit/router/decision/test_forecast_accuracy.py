"""How right the forecasts are over engines whose attention is quadratic: prompts of 1k to 16k tokens, conversations."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from router.decision.forecast import Forecaster
from skim_common.models.costs import read_cost
from tests.unit.router.simulated_pools import Pool, World, text

SEEDS, REQUESTS = 3, 60


def llama(hidden, layers, heads, kv_heads, intermediate, head_dim=None):
    return read_cost(
        SimpleNamespace(
            hidden_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            intermediate_size=intermediate,
            head_dim=head_dim,
        )
    )


PAIRS = {
    # Milliseconds: fixed, and per token without attention. Attention is `per_pair` times as slow as the rest.
    "70b+8b": ((30, 0.03, llama(4096, 32, 32, 8, 14336), 1.3), (60, 0.15, llama(8192, 80, 64, 8, 28672), 1.3)),
    "1.5b+0.5b, CPU": ((150, 4.0, llama(896, 24, 14, 2, 4864), 3.0), (200, 16.0, llama(1536, 28, 12, 2, 8960), 3.0)),
    "demo, CPU": ((30, 0.02, llama(192, 2, 8, 2, 256, 64), 4.0), (60, 0.15, llama(320, 5, 8, 2, 768, 64), 4.0)),
}


def world(pair, seed, capacity):
    speculator, target = (
        Pool(fixed, per_token, 0.1, cost, per_pair, capacity, random.Random(seed))
        for fixed, per_token, cost, per_pair in PAIRS[pair]
    )
    return World(extends=True, speculator=speculator, target=target)


def traffic(world, requests, seed):
    """Fresh prompts of 1k to 16k tokens, as many of each size, and later turns of the last eight conversations."""
    choose, histories = random.Random(seed), []
    for step in range(requests):
        if not histories or choose.random() < 0.6:
            history = text(f"{seed} {step}", round(1000 * 16 ** choose.random()))
        else:
            question = text(f"{seed} {step}", choose.randrange(20, 400))
            history = histories.pop(choose.randrange(len(histories))) + question
        answer = text(f"{seed} answer {step}", choose.randrange(10, 300))
        world.run(history, answer)
        histories = [*histories, history + answer][-8:]


def replayed(pair, capacity=10**9):
    """Of the prompts after a router's first ten: forecasts divided by real times, times divided by those of the other
    mode if that is sooner, and whether a pool had evicted what it was believed to have."""
    ratios, regrets, missed = [], [], []
    for seed in range(SEEDS):
        simulated = world(pair, seed, capacity)
        traffic(simulated, REQUESTS, seed)
        ratios += simulated.ratios[10 - REQUESTS :]
        regrets += simulated.regrets[10:]
        missed += simulated.missed[10:]
    return np.array(ratios), np.array(regrets), np.array(missed)


def right(ratios):
    """The share of the forecasts within .8 to 1.25 of the real time."""
    return np.mean((ratios > 0.8) & (ratios < 1.25))


@pytest.mark.parametrize("pair", PAIRS)
def test_forecasts_are_right_and_the_other_mode_is_seldom_sooner(pair):
    ratios, regrets, _ = replayed(pair)
    assert right(ratios) >= 0.9
    assert np.mean(regrets > 1.2) <= 0.05


@pytest.fixture
def nothing_told(monkeypatch):
    """Routers that know neither the shapes of the models nor what the caches hold."""
    monkeypatch.setattr(Forecaster, "know", lambda self, pool, model, replicas: None)


def test_without_the_quadratic_term_forecasts_are_wrong(nothing_told):
    """The negative control of the test above."""
    assert right(replayed("demo, CPU")[0]) < 0.6


def test_what_was_evicted_is_not_believed_to_be_cached():
    assert replayed("demo, CPU", 20_000)[2].mean() <= 0.02


def test_without_the_capacity_evicted_prefixes_are_believed_to_be_cached(nothing_told):
    """The negative control of the test above."""
    assert replayed("demo, CPU", 20_000)[2].mean() > 0.1
