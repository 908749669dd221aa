"""The draft counts in simulated pools: never slower than no drafts, near the best fixed count, and few probes."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from target_service.drafting.counts import PROBE_SHARE, REST, DraftCounts, Line, PositionAcceptance

MOST = 4


@dataclass
class Pool:
    """A simulated target and drafter; a plain step takes one second. All requests of the batch may get drafts.

    rates: acceptance by position. verify: seconds that a step takes longer for one draft per request. exchange, draft:
    seconds that an exchange takes, and each draft in it. noise: relative deviation of all times.
    """

    rates: tuple[float, ...]
    rows: int = 1
    verify: float = 0.03
    exchange: float = 0.1
    draft: float = 0.03
    noise: float = 0.0

    def speed(self, k: int) -> float:
        """Tokens per second and request with always K drafts."""
        return (1 + np.cumprod(self.rates)[:k].sum()) / self.seconds(k, k)

    def seconds(self, drafts_per_row: float, largest: int) -> float:
        return 1 + self.verify * drafts_per_row + (self.exchange + self.draft * largest if largest else 0)

    def run(self, counts: DraftCounts, steps: int, seed: int = 0) -> tuple[float, list[int]]:
        """Tokens per second and request of a run, and the largest count in each step. The first exchange connects."""
        rng = np.random.default_rng(seed)
        everyone = PositionAcceptance(MOST)
        requests = [PositionAcceptance(MOST, everyone) for _ in range(self.rows)]
        limits = np.full(self.rows, MOST)
        tokens, seconds, chosen = 0, 0.0, []
        for _ in range(steps):
            plan = np.zeros(self.rows, int)
            if not counts.rest():
                plan = counts.choose(np.stack([r.expected for r in requests]), limits, self.rows)
            largest = int(plan.max())
            waited = (self.exchange + self.draft * largest) * self._noisy(rng) if largest else 0.0
            step = (1 + self.verify * plan.mean()) * self._noisy(rng)
            if largest:
                counts.exchanged(largest, waited, drafted=True)
            counts.stepped(int(plan.sum()), self.rows, step)
            seconds += step + waited
            chosen.append(largest)
            for request, drafts in zip(requests, plan, strict=True):
                accepted = int(np.cumprod(rng.random(drafts) < np.array(self.rates)[:drafts]).sum())
                tokens += 1 + accepted
                if drafts:
                    request.observe(drafts, accepted)
                    everyone.observe(drafts, accepted)
        return tokens / seconds / self.rows, chosen

    def _noisy(self, rng: np.random.Generator) -> float:
        """A factor with mean 1. One step in a hundred is interrupted by other work."""
        interrupted = 10 * self.noise * ((rng.random() < 0.01) - 0.01)
        return float(np.exp(self.noise * rng.normal() - self.noise**2 / 2) * (1 + interrupted))


POOLS = {
    "past an answer's end, tiny target": Pool((0.33, 0.65, 0.15, 0.1), exchange=1.4, draft=0.4, verify=0.1),
    "the same in a batch": Pool((0.33, 0.65, 0.15, 0.1), rows=8, exchange=1.4, draft=0.4, verify=0.5),
    "full batch": Pool((0.8, 0.8, 0.8, 0.8), rows=32, exchange=0.5, draft=0.2, verify=1.0),
    "wrong drafter": Pool((0.0, 0.0, 0.0, 0.0)),
    "deep target": Pool((0.35, 0.7, 0.12, 0.1)),
    "deep target, batch": Pool((0.35, 0.7, 0.12, 0.1), rows=8, verify=0.1),
    "good drafter": Pool((0.8, 0.8, 0.8, 0.8)),
    "perfect drafter": Pool((1.0, 1.0, 1.0, 1.0), exchange=0.01, draft=0.0),
    "right about one token": Pool((0.9, 0.1, 0.1, 0.1)),
}


@pytest.mark.parametrize("noise", [0.0, pytest.param(0.1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", POOLS)
def test_never_slower_than_no_drafts_and_near_the_best_count(name: str, noise: float) -> None:
    pool, counts = replace(POOLS[name], noise=noise), DraftCounts(MOST)
    pool.run(counts, 100)  # the first steps measure the costs
    speed = np.mean([pool.run(counts, 2000, seed)[0] for seed in range(2)])
    assert speed >= 0.98 * pool.speed(0)
    assert speed >= 0.93 * max(pool.speed(k) for k in range(MOST + 1))


@pytest.mark.parametrize("name", ["past an answer's end, tiny target", "full batch", "wrong drafter"])
def test_probes_are_few_where_drafts_do_not_pay(name: str) -> None:
    pool = POOLS[name]
    _, chosen = pool.run(DraftCounts(MOST), 3100)
    chosen = chosen[100:]  # the first steps measure costs and acceptance
    probes = [k for k in chosen if k]
    assert set(probes) == {MOST}
    # A plain step takes one second and gives one token: a probe loses the seconds that its tokens do not make up for.
    lost = pool.seconds(MOST, MOST) - 1 - np.cumprod(pool.rates).sum()
    # The first probes lose more than was estimated.
    assert lost * len(probes) <= 2 * PROBE_SHARE * len(chosen)


def test_a_pool_that_changes_is_noticed() -> None:
    good, bad = POOLS["good drafter"], POOLS["wrong drafter"]
    counts = DraftCounts(MOST)
    for pool in (good, bad, good, bad):
        pool.run(counts, 1500)
        speed, _ = pool.run(counts, 1000)
        assert speed >= 0.95 * max(pool.speed(k) for k in range(MOST + 1))


def test_requests_of_a_batch_get_different_counts() -> None:
    counts = measured(Line(1.0, 0.1, 50, 50), Line(0.1, 0.01, 50, 50))
    expected = np.cumprod([[0.9] * MOST, [0.05] * MOST, [0.9] * MOST, [0.9, 0.1, 0.1, 0.1]], axis=1)
    assert counts.choose(expected, np.array([9, 9, 2, 9]), 4).tolist() == [4, 0, 2, 1]


def test_all_requests_of_a_batch_pay_for_an_exchange() -> None:
    """An exchange that pays for one request alone does not pay if seven others wait for it."""
    expected = np.cumprod([[0.9] * MOST], axis=1)
    costs = Line(1.0, 0.0, 50, 50), Line(0.5, 0.01, 50, 50)
    assert measured(*costs).choose(expected, np.array([MOST]), 1).tolist() == [4]
    assert measured(*costs).choose(expected, np.array([MOST]), 8).tolist() == [0]


def test_every_draft_is_tried_until_costs_are_known() -> None:
    counts, expected = DraftCounts(MOST), np.full((1, MOST), 0.01)
    assert counts.choose(expected, np.array([MOST]), 1).tolist() == [0], "the first step is measured without drafts"
    counts.stepped(0, 1, 1.0)
    assert counts.choose(expected, np.array([MOST]), 1).tolist() == [MOST]
    counts.exchanged(MOST, 9.0, drafted=True)
    assert not counts.exchange.elsewhere, "the first exchange also connects"
    assert counts.choose(expected, np.array([MOST]), 1).tolist() == [MOST]
    counts.exchanged(MOST, 1.0, drafted=True)
    assert counts.choose(expected, np.array([MOST]), 1).tolist() == [0]


def test_a_drafter_that_does_not_answer_is_seldom_asked() -> None:
    counts, expected, waited = DraftCounts(MOST), np.full((1, MOST), 0.9), 0.0
    for _ in range(2000):
        counts.stepped(0, 1, 0.01)
        if counts.choose(expected, np.array([MOST]), 1).any():
            counts.exchanged(MOST, 0.25, drafted=False)
            waited += 0.25
    assert waited < 2 * 0.25 + PROBE_SHARE * 2000 * 0.01 * 2


def test_counts_rest_only_where_drafts_do_not_pay() -> None:
    counts = measured(Line(1.0, 0.1, 50, 50), Line(0.1, 0.01, 50, 50))
    for rate, rests in ((0.9, 0), (0.01, REST - 1), (0.9, 0)):
        counts.choose(np.cumprod([[rate] * MOST], axis=1), np.array([MOST]), 1)
        assert [counts.rest() for _ in range(2 * REST)] == [True] * rests + [False] * (2 * REST - rests)


def test_an_exchange_that_fails_at_once_says_nothing_about_its_cost() -> None:
    counts = measured(Line(1.0, 0.0, 50, 50), Line(0.2, 0.01, 50, 50))
    counts.exchanged(MOST, 0.0, drafted=False)
    assert counts.exchange == Line(0.2, 0.01, 50, 50)


def measured(step: Line, exchange: Line) -> DraftCounts:
    """Counts whose costs are known, and that may not probe yet."""
    counts = DraftCounts(MOST)
    counts.exchanged(1, 0.0, drafted=True)
    counts.step, counts.exchange = step, exchange
    return counts


@given(
    st.lists(
        st.tuples(st.lists(st.floats(0, 1), min_size=MOST, max_size=MOST), st.integers(0, 20)), min_size=1, max_size=8
    ),
    st.tuples(*[st.floats(0, 1)] * 4),
    st.integers(0, 5),
)
def test_counts_keep_their_limits(
    requests: list[tuple[list[float], int]], costs: tuple[float, ...], others: int
) -> None:
    counts = measured(Line(*costs[:2], 50, 50), Line(*costs[2:], 50, 50))
    expected = np.cumprod([rates for rates, _ in requests], axis=1)
    limits = np.array([limit for _, limit in requests])
    for _ in range(5):
        plan = counts.choose(expected, limits, len(requests) + others)
        assert (plan >= 0).all()
        assert (plan <= np.minimum(limits, MOST)).all()
        counts.stepped(int(plan.sum()), len(requests) + others, 1.0)
