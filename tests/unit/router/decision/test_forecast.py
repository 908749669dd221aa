"""Forecasts over simulated pools: conversations and documents, with caches, speeds and a clock of the test."""

import random
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from kv_transfer.messages import KeptPrompt, Selection, SessionHandle
from router.decision.choice import Decision
from router.decision.forecast import Forecaster
from router.decision.ledger import CachedPrefix, CacheLedger
from router.options.request import PrefillOptions
from skim_common.models.costs import Read
from tests.unit.kv_transfer.layouts import layout_of
from tests.unit.router.simulated_pools import INFO, LATE, OPTIONS, World, text


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
            monkeypatch.setattr(CacheLedger, "find", lambda self, ids, hashes: CachedPrefix())
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
    assert forecaster.look(turn, "another tenant", OPTIONS).kept == CachedPrefix()


HEAD = 5120
"""Tokens of a system prompt, or of tools."""


def measured(target_per_token=1.0):
    """A router that knows the speeds of its pools: 0.1 ms per token, and the target's."""
    forecaster = Forecaster(lambda: 0.0)
    for size in (200, 3000, 900, 12_000):
        forecaster.speculator.measure(Read(size), 0.1 * size, 0.0)
        forecaster.target.measure(Read(size), target_per_token * size, 0.0)
    return forecaster


def with_head(name, document=8000):
    return np.array([*text("head", HEAD), *text(name, document)], np.int32)


def protected(size=HEAD):
    return layout_of([(0, size)])


def answered(forecaster, ids, prompt, cached=0):
    """A prompt with a head runs in the form `prompt`."""
    forecast = forecaster.look(ids, None, OPTIONS, protected())
    if not prompt.is_dense:
        selection = Selection(prompt, 0.9, timings={"speculate": 0.1 * ids.size})
        forecaster.selected(forecast, selection, OPTIONS)
    forecaster.began(forecast, prompt, cached, 1.0 * (prompt.token_ids.size - cached), 0.0)


def test_protected_text_counts_once():
    found = measured().look(with_head("a"), None, OPTIONS, protected()).estimate
    kept = HEAD + 64 + 0.2 * (8000 - 64)
    assert found.speculative == pytest.approx(0.1 * (HEAD + 8000) + kept, rel=0.02)
    # Negative control: the share of all tokens beside the protected ones, which would choose dense at once.
    assert 1.1 * found.speculative < 0.1 * (HEAD + 8000) + HEAD + 64 + 0.2 * (HEAD + 8000)


@pytest.mark.parametrize("first", ["dense", "speculative"])
def test_both_modes_find_a_head_that_was_read_in_one(first):
    """Nothing is dropped before the head's end, so the target's KV of it is the same."""
    forecaster, ids = measured(), with_head("first")
    kept = np.concatenate([np.arange(HEAD), np.arange(HEAD, ids.size, 5)]).astype(np.int32)
    whole = KeptPrompt.dense(ids)
    answered(forecaster, ids, whole if first == "dense" else KeptPrompt(ids[kept], kept, int(ids.size)))
    found = forecaster.look(with_head("second"), None, OPTIONS, protected())
    assert (found.known_dense, found.kept.kept) == (HEAD, HEAD)
    assert found.before is None, "a head that conversations share is no earlier turn"
    assert found.estimate.dense == pytest.approx(8000, rel=0.02)
    selector = 0.1 * (HEAD + 8000 - found.read.tokens)
    assert found.estimate.speculative == pytest.approx(selector + 64 + 0.2 * (8000 - 64), rel=0.02)
    # Negative control: what was read dense is another form of a head that may be dropped.
    assert forecaster.look(with_head("second"), None, OPTIONS).kept.kept == (0 if first == "dense" else HEAD)
    assert forecaster.look(with_head("second"), "another tenant", OPTIONS, protected()).kept == CachedPrefix()


def test_a_head_that_prompts_share_makes_them_no_later_turns():
    forecaster = measured()
    for number in range(20):
        answered(forecaster, with_head(f"{number}", 3000), KeptPrompt.dense(with_head(f"{number}", 3000)))
    assert forecaster.turns.expected == 0
    # Negative control: without the protection, it is an earlier turn.
    for number in range(20):
        ids = with_head(f"again {number}", 3000)
        forecaster.began(forecaster.look(ids, None, OPTIONS), KeptPrompt.dense(ids), HEAD, 3000.0, 0.0)
    assert forecaster.turns.expected > 0


def test_the_reason_is_cached_only_if_something_is():
    """Nothing is measured yet, and a selection would drop nothing that matters."""
    forecaster, ids = Forecaster(lambda: 0.0), with_head("a", 200)
    many = OPTIONS.model_copy(update={"keep_rate": 0.99})
    almost = layout_of([(0, ids.size - 70)])
    assert forecaster.look(ids, None, many, almost).choice == Decision(False, "sooner")
    forecaster.began(forecaster.look(ids, None, many, almost), KeptPrompt.dense(ids), 0, 5000.0, 0.0)
    assert forecaster.look(ids, None, many, almost).choice == Decision(False, "cached")


def test_the_share_of_a_coverage_is_learned_without_what_is_protected():
    forecaster, auto = measured(), OPTIONS.model_copy(update={"keep_rate": "auto"})
    for number in range(4):
        ids = with_head(f"{number}")
        kept = np.concatenate([np.arange(HEAD), np.arange(HEAD, ids.size, 10), np.arange(ids.size - 64, ids.size)])
        positions = np.unique(kept).astype(np.int32)
        forecast = forecaster.look(ids, None, auto, protected())
        selection = Selection(KeptPrompt(ids[positions], positions, int(ids.size)), 0.5, timings={"speculate": 1312.0})
        forecaster.selected(forecast, selection, auto)
    found = forecaster.look(np.array(text("plain", 8000), np.int32), None, auto)
    assert found.share == pytest.approx(0.1, rel=0.1)
    assert found.estimate.speculative == pytest.approx(800 + 64 + 0.1 * (8000 - 64), rel=0.03)
    # Another way to select has another share.
    assert forecaster.look(found.ids, None, auto.model_copy(update={"coverage": 0.9})).share == 0.5


def test_the_speculators_read_for_drafts_is_work_of_its_pool():
    """It reads what the target does, behind what it has of an earlier turn. No first token waits for it."""
    world = World()
    world.learn()
    first, turn = text("conversation", 5000), text("turn", 2000)

    def works(ids):
        forecast = world.forecaster.look(np.array(ids, np.int32), None, OPTIONS)
        return [world.forecaster.work(forecast, OPTIONS, 0, selects=True, reads_for_drafts=r) for r in (False, True)]

    plain, drafted = works(first)
    assert (plain.drafts_ms, drafted.total_ms) == (0.0, plain.total_ms)
    assert drafted.drafts_ms == pytest.approx(20 + 0.1 * (65 + 0.2 * 5000), rel=0.1)
    world.run(first, [], "speculative")
    assert works(first + turn)[1].drafts_ms == pytest.approx(20 + 0.1 * (0.2 * 2000 + 65 + LATE), rel=0.25)
    dense = world.forecaster.look(np.array(first, np.int32), None, OPTIONS)
    assert world.forecaster.work(dense, OPTIONS, 0, selects=False, reads_for_drafts=True).drafts_ms == 0.0


def test_without_whole_reads_the_speed_of_windows_prices_the_read_for_drafts():
    forecaster, ids = Forecaster(lambda: 0.0), np.array(text("a", 5000), np.int32)
    for pool in (forecaster.target, forecaster.windows):
        for size in (1000, 4000, 16_000):
            pool.measure(Read.of(size), 0.1 * size, 0.0)
    work = forecaster.work(forecaster.look(ids, None, OPTIONS), OPTIONS, 0, selects=True, reads_for_drafts=True)
    assert work.drafts_ms == pytest.approx(0.1 * (64 + 0.2 * (5000 - 64)), rel=0.01)


def test_a_session_fills_the_speculators_cache_with_the_kept_prompt():
    """Then a prefix that was read long ago is gone sooner."""
    for session, known in ((None, True), (SessionHandle("a:1", "s"), False)):
        forecaster, ids = Forecaster(lambda: 0.0), np.array(text("a", 5000), np.int32)
        forecaster.know("speculator", replace(INFO, cache_tokens=6000), 1.0)
        selection = Selection(replace(KeptPrompt.dense(ids[:2000]), session=session), 0.9)
        forecaster.selected(forecaster.look(ids, None, OPTIONS), selection, OPTIONS)
        other = np.array(text("b", 500), np.int32)
        forecaster.selected(forecaster.look(other, None, OPTIONS), Selection(KeptPrompt.dense(other), 0.9), OPTIONS)
        assert (forecaster.look(ids, None, OPTIONS).read.tokens > 4000) == known


def test_adapters_have_times_of_their_own_and_the_queue_of_the_target():
    """With an adapter, the target reads at half the speed here."""
    forecaster = measured()

    def look(name, size, adapted):
        return forecaster.look(np.array(text(name, size), np.int32), None, OPTIONS, adapted=adapted)

    assert look("first", 8000, True).estimate == look("first", 8000, False).estimate, "nothing is measured with one yet"
    forecaster.began(look("one", 3000, True), KeptPrompt.dense(text("one", 3000)), 0, 6000.0, 0.0)
    assert look("first", 8000, True).estimate.dense == pytest.approx(16_000, rel=0.05), "one time tells how much slower"
    for size in (6000, 3000, 12_000):
        forecast = look(f"adapted {size}", size, True)
        forecaster.began(forecast, KeptPrompt.dense(forecast.ids), 0, 2.0 * size, 50.0)
    found, base = (look("second", 8000, adapted).estimate for adapted in (True, False))
    assert found.queue == base.queue == 50.0
    assert found.dense - 50 == pytest.approx(16_000, rel=0.05)
    assert base.dense - 50 == pytest.approx(8000, rel=0.05)
    assert forecaster.work(look("third", 8000, True), OPTIONS, 0, selects=False).target_ms == pytest.approx(
        16_000, rel=0.05
    )
