"""Forecasts over simulated pools: conversations and documents, with caches, speeds and a clock of the test."""

import random
from itertools import pairwise

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt, Selection
from router.decision.cache_ledger import CacheLedger, Found
from router.decision.forecast import Forecaster
from router.decision.rules import Decision
from router.options.request import PrefillOptions
from skim_common.models.costs import Read
from tests.unit.router.simulated_pools import OPTIONS, World, text


def test_a_fresh_deployment_is_speculative():
    world = World()
    for i in range(3):
        assert world.run(text(f"{i}", 5000), []) == ("unmeasured", "speculative")
    assert world.run(text("later", 5000), []) == ("sooner", "speculative")


def test_a_conversation_that_began_dense_stays_on_its_cache_and_a_pasted_document_does_not():
    world = World()
    world.learn()
    history = text("conversation", 3000)
    world.run(history, [], "dense")
    for turn in range(5):
        question, answer = text(f"q{turn}", 60), text(f"a{turn}", 200)
        assert world.run([*history, *question], answer) == ("cached", "dense")
        history += question + answer
    assert world.run([*history, *text("pasted", 15_000)], [])[1] == "speculative"
    # Negative control: a router that has seen none of it.
    stranger = World()
    stranger.learn()
    assert stranger.run(history, [])[1] == "speculative"


def test_the_lexical_selector_has_times_of_its_own():
    world, lexical = World(), PrefillOptions(keep_rate=0.2, selector="lexical")
    world.learn()
    ids = np.array(text("lexical", 5000), np.int32)
    for _ in range(3):
        forecast = world.forecaster.look(ids, None, lexical)
        assert forecast.estimate is None
        world.forecaster.selected(forecast, Selection(world.kept(ids), 0.9, timings={"speculate": 5.0}), lexical)
    by_words, by_attention = (world.forecaster.look(ids, None, o).estimate.speculative for o in (lexical, OPTIONS))
    assert by_attention - by_words == pytest.approx(20 + 0.1 * 5000 - 5, rel=0.1)
    # Nothing was read, so nothing is expected in the speculator's cache.
    assert world.forecaster.look(ids, None, OPTIONS).read.tokens == 0


def test_a_fast_target_is_left_alone():
    world = World(target_per_token=0.05)
    world.learn()
    assert world.run(text("a", 5000), []) == ("sooner", "dense")


def traffic(world, requests, seed):
    """Conversations of several turns with new documents. Half of them began dense, as short ones do."""
    choose = random.Random(seed)
    histories = {i: text(f"start {i}", choose.randrange(1100, 6000)) for i in range(8)}
    for step in range(requests):
        i = choose.randrange(8)
        if choose.random() < 0.1:
            histories[i] = text(f"{seed} new {step}", choose.randrange(1100, 20_000))
            if choose.random() < 0.5:
                world.run(histories[i], [], "dense")
                world.regrets.pop()
        new = 8000 if choose.random() < 0.1 else choose.randrange(20, 300)
        prompt = histories[i] + text(f"{seed} {step}", new)
        answer = text(f"{seed} answer {step}", choose.randrange(10, 400))
        world.run(prompt, answer)
        histories[i] = prompt + answer if len(prompt) < 40_000 else text(f"{seed} again {step}", 2000)


@pytest.mark.parametrize("noise", [0.0, pytest.param(0.2, marks=pytest.mark.nightly)])
def test_the_choice_is_hardly_slower_than_the_better_mode(noise):
    world = World(noise=noise)
    world.learn()
    world.regrets.clear()
    traffic(world, 300, 3)
    regrets = np.array(world.regrets)
    assert {"dense", "speculative"} == set(world.modes)
    assert np.quantile(regrets, 0.9) <= 1.0 + 0.12 + 2 * noise
    assert regrets.mean() <= 1.0 + 0.05 + noise


def test_without_its_ledgers_the_choice_is_much_slower(monkeypatch):
    """The negative control of the test above."""
    means = []
    for blind in (False, True):
        world = World()
        world.learn()
        for i in range(8):
            world.run(text(f"start {i}", 4000), [], "dense")
        if blind:
            monkeypatch.setattr(CacheLedger, "find", lambda self, ids, hashes: Found())
        world.regrets.clear()
        for turn in range(5):
            for i in range(8):
                world.run(text(f"start {i}", 4000) + text(f"{turn}", 100), [])
        means.append(np.mean(world.regrets))
    assert means[0] < 1.05
    assert means[1] > 2 * means[0]


def test_a_conversation_does_not_flap_between_modes_of_equal_time():
    """The target's speed makes both modes of a turn nearly equal; measurements are noisy."""
    world = World(noise=0.15, target_per_token=0.13)
    world.learn()
    history, modes = text("conversation", 6000), []
    for turn in range(40):
        answer = text(f"a{turn}", 100)
        modes.append(world.run(history, answer)[1])
        history = history + answer + text(f"q{turn}", 100)
    assert sum(a != b for a, b in pairwise(modes)) <= 2


def test_a_speculator_that_had_one_bad_time_is_tried_again():
    world = World()
    world.learn()
    world.speculator.per_token = 30.0
    for i in range(20):
        world.run(text(f"slow {i}", 4000), [], "speculative")
    assert world.run(text("meanwhile", 4000), []) == ("sooner", "dense")
    world.speculator.per_token = 0.5
    reasons = []
    for i in range(30):
        world.now += 600
        reasons.append(world.run(text(f"later {i}", 4000), [])[0])
    assert "probe" in reasons
    assert world.modes[-1] == "speculative"


def test_prompts_behind_a_dense_one_find_what_it_reads():
    """Until the target has answered, only the router knows that the beginning will be cached."""
    world = World()
    document = text("document", 6400)
    ids = [np.array([*document, *text(f"q{i}", 100)], np.int32) for i in range(2)]
    first = world.forecaster.look(ids[0], None, OPTIONS)
    with world.forecaster.sent(first, KeptPrompt.dense(ids[0])):
        assert world.forecaster.look(ids[1], None, OPTIONS).choice == Decision(False, "cached")
        assert world.forecaster.look(ids[1], "another tenant", OPTIONS).choice.speculative
        with world.forecaster.sent(first, KeptPrompt.dense(ids[0])):
            pass
        assert world.forecaster.look(ids[1], None, OPTIONS).coming == 6400
    assert world.forecaster.look(ids[1], None, OPTIONS).choice == Decision(True, "unmeasured")
    with world.forecaster.sent(first, world.kept(ids[0].tolist())):
        assert world.forecaster.look(ids[1], None, OPTIONS).coming == 0


def test_what_a_record_reuses_makes_a_turn_speculative():
    """The target computes only what extends the kept prompt of the earlier turn, if the pools reuse it."""
    forecaster, ids = Forecaster(lambda: 0.0), np.array(text("a", 12_800), np.int32)
    kept = World().kept(ids)
    for size in (200, 3000, 900):
        forecaster.speculator.measure(Read(size), 0.1 * size, 0.0)
        forecaster.target.measure(Read(size), 1.0 * size, 0.0)
    first = forecaster.look(ids, None, OPTIONS)
    forecaster.selected(first, Selection(kept, 0.9, timings={"speculate": 1280.0}), OPTIONS)
    forecaster.began(first, kept, 0, 2600, 0.0)
    forecaster.ended(first, kept, np.array(text("answer", 256), np.int32))
    turn = np.array([*ids, *text("answer", 256), *text("q", 100)], np.int32)
    again = forecaster.look(turn, None, OPTIONS)
    assert again.read.tokens == again.kept.tokens == 13_056
    assert again.kept.kept == kept.token_ids.size + 256
    assert again.estimate.speculative < 0.2 * first.estimate.speculative
    assert forecaster.look(turn, "another tenant", OPTIONS).kept == Found()
