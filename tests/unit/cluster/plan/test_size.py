"""The sizes of the pools: they keep the SLOs, one GPU less does not, and Skim's losses are named."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from cluster.plan.formulas import expected_tokens
from cluster.plan.gpus import GPUS, Machine
from cluster.plan.kept import kept_by_default
from cluster.plan.pools import MOST_BUSY, PlannedLoad, draft_step_s, speculator_pool, target_pool
from cluster.plan.report import answer, verdict
from cluster.plan.size import RANKS, Sizer
from skim_common.models.costs import Read
from tests.unit.cluster.plan.shapes import model

LONG = PlannedLoad(qps=2, prompt=32000, answer=300, slo_ttft=2, slo_tpot=0.05)
SHORT = replace(LONG, qps=0.5, prompt=1000)


def sizer(target: str = "llama-8b", speculator: str = "llama-1b", gpu: str = "h200") -> Sizer:
    return Sizer(model(target), model(speculator), GPUS[gpu], Machine.of(GPUS[gpu]))


@pytest.mark.parametrize("qps", [0.1, 2, 20])
@pytest.mark.parametrize("pair", [("llama-8b", "llama-1b", "h200"), ("llama-70b", "llama-8b", "h100")])
def test_the_plans_keep_the_slos_and_no_pool_is_overloaded(pair, qps):
    load = replace(LONG, qps=qps)
    for plan in (sizer(*pair).skim(load), sizer(*pair).plain(load)):
        assert plan.keeps(load)
        for pool in filter(None, (plan.target, plan.speculator)):
            assert pool.busy <= MOST_BUSY
            assert pool.rows <= pool.memory.sessions


def test_no_smaller_plan_keeps_the_slos():
    """By trying all of them. Here a pool with more than the fewest replicas makes the whole deployment smaller."""
    load = replace(LONG, qps=5, slo_ttft=1.2)
    own = sizer(gpu="l40s")
    plan = own.skim(load, drafts=0)
    smaller = [
        found
        for ranks, speculator_ranks in itertools.combinations_with_replacement(RANKS[::-1], 2)
        for targets in range(1, plan.gpus // ranks + 1)
        for speculators in range(1, plan.gpus // speculator_ranks + 1)
        if targets * ranks + speculators * speculator_ranks < plan.gpus
        and (
            found := own.skim_of(
                own.engine(own.target, ranks),
                targets,
                own.engine(own.speculator, speculator_ranks),
                speculators,
                load,
                0,
            )
        )
        and found.keeps(load)
    ]
    assert smaller == []
    own, load = sizer(), replace(LONG, qps=20)
    plain = own.plain(load)
    assert own.plain_on(plain.gpus, load).keeps(load)
    less = own.plain_on(plain.gpus - plain.target.ranks, load)
    assert less is None or not less.keeps(load)


def test_the_first_token_waits_for_both_pools_and_skims_own_work():
    own = sizer()
    plan = own.skim(LONG)
    parts = [part for pool in (plan.speculator, plan.target) for part in (pool.wait, pool.service)]
    assert all(part > 0 for part in parts)
    assert plan.first == pytest.approx(sum(parts) + own.machine.skim_s)
    assert plan.target.service == own.engine(own.target, 1).read_s(Read(6400))


@pytest.mark.parametrize("windows", [True, False])
def test_drafts_are_over_what_was_kept_which_is_read_for_them(windows):
    own = replace(sizer(), windows=windows)
    engine = own.engine(own.speculator, 1)
    assert draft_step_s(engine, LONG, 2) == engine.step_s(2, 0.2 * 32000 + 150)
    load = replace(LONG, qps=0.01)
    target = target_pool(own.engine(own.target, 1), own.gpu, 1, load, 6400)
    with_drafts, without = (speculator_pool(engine, own.gpu, 1, load, target, drafts) for drafts in (2, 0))
    round_s = target.tpot * expected_tokens(load.acceptance, 2)
    drafting = min(1.0, target.rows) * 2 * draft_step_s(engine, load, target.rows) / round_s
    assert with_drafts.busy - without.busy - drafting == pytest.approx(0.01 * engine.read_s(Read(6400)))


def test_prefills_and_drafts_make_the_tokens_of_an_answer_slower():
    own = sizer()
    engine = own.engine(own.target, 1)
    pool = target_pool(engine, own.gpu, 1, replace(LONG, qps=0.01), 32000)
    assert pool.tpot == pytest.approx(engine.step_s(1, 32150) / (1 - 0.01 * pool.service))
    drafting = target_pool(engine, own.gpu, 1, replace(LONG, qps=0.01), 32000, 2, 0.003)
    expected = (engine.step_s(1, 32150, 3) + 0.003) / (1 + 0.7 + 0.49) / (1 - 0.01 * pool.service)
    assert drafting.tpot == pytest.approx(expected)


def test_more_load_needs_more_gpus():
    gpus = [sizer().skim(replace(LONG, qps=qps)).gpus for qps in (1, 5, 25, 125)]
    assert gpus == sorted(set(gpus))


def test_the_answers_at_a_time_follow_littles_law():
    own = sizer()
    pool = target_pool(own.engine(own.target, 1), own.gpu, 1, replace(LONG, qps=0.3), 32000)
    assert pool.rows == pytest.approx(0.3 * 300 * pool.tpot, rel=0.01)


def test_a_pool_without_room_for_its_answers_is_refused():
    """The same load with longer answers: more than fit into the KV cache, and still fewer than 256 at a time."""
    own = sizer(gpu="l40s")
    engine = own.engine(own.target, 1)
    load = replace(LONG, qps=0.1, prompt=8000)
    assert target_pool(engine, own.gpu, 1, load, 8000)
    assert target_pool(engine, own.gpu, 1, replace(load, answer=3200), 8000) is None
    roomy = replace(own.gpu, memory=1e12)
    assert target_pool(engine, roomy, 1, replace(load, answer=3200), 8000)


def test_slos_that_no_hardware_keeps_have_no_plan():
    impossible = replace(LONG, slo_ttft=0.01)
    assert sizer().skim(impossible) is None
    assert sizer().plain(impossible) is None
    assert verdict(impossible, None, None, None).startswith("Neither Skim nor plain vLLM")


def test_the_verdict_says_when_skim_does_not_pay():
    assert answer(sizer(), LONG)["verdict"] == "Skim pays: it needs 2 GPUs for this load, plain vLLM 4."
    assert answer(sizer(), SHORT)["verdict"] == (
        "Skim does not pay: plain vLLM keeps these SLOs on 1 GPU, Skim needs 2."
    )
    little = answer(sizer(), replace(LONG, qps=0.1))
    assert little["verdict"].startswith(
        "Skim does not pay: plain vLLM keeps these SLOs on 1 GPU, Skim needs 2, although"
    )
    # The speculator is the target: reading twice is never sooner.
    twin = answer(sizer("llama-8b", "llama-8b"), replace(LONG, keep_rate=1.0))
    assert twin["verdict"].startswith("Skim does not pay")
    assert twin["pays_from_tokens"] is None


def test_skim_pays_from_the_length_where_both_take_the_same_time():
    own, load = sizer(), replace(LONG, qps=0.1)
    skim, plain = own.skim(load), own.plain(load)
    tokens = own.pays_from(load, skim, plain)
    ranks = skim.target.ranks, skim.speculator.ranks, plain.target.ranks
    plain, skim = own.first_alone(load, tokens, *ranks)
    assert skim < plain
    plain, skim = own.first_alone(load, round(0.95 * tokens), *ranks)
    assert skim > plain


def test_the_first_page_says_what_remains_if_attention_is_free():
    """A 70B on 8 GPUs, and a 1B that reads all of a prompt on one, also a second time."""
    own = sizer("llama-70b", "llama-1b", "h100")
    free = replace(own, target=replace(own.target, read=replace(own.target.read, pair=0.0)))
    kept = replace(LONG, keep_rate=kept_by_default(32768))
    plain, skim = free.first_alone(kept, 32768, 8, 1, 8)
    page = " ".join((Path(__file__).parents[4] / "README.md").read_text().split())
    assert f"a 70B (8 H100) with a 1B reads 32k {plain / skim:.1f} times as fast" in page


def test_the_best_draft_length_follows_the_acceptance():
    own = sizer("llama-70b", "llama-1b", "h100")
    engines = own.engine(own.target, 8), own.engine(own.speculator, 1)
    lengths = [own.best_drafts(*engines, replace(LONG, acceptance=a)) for a in (0.0, 0.5, 0.9)]
    assert lengths == sorted(set(lengths))
    assert lengths[0] == 0


def test_drafts_make_answers_faster_and_keep_the_speculator_busy():
    own, load = sizer("llama-70b", "llama-1b", "h100"), replace(LONG, qps=0.2, acceptance=0.9)
    without, with_drafts = (own.skim(load, drafts) for drafts in (0, 4))
    assert with_drafts.target.tpot < without.target.tpot
    assert with_drafts.speculator.busy > without.speculator.busy
    useless = own.skim(replace(load, acceptance=0.0), 4)
    assert useless.target.tpot > without.target.tpot
