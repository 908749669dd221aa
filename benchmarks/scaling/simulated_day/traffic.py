"""The requests of a simulation: a day of conversations. Pure."""

from dataclasses import dataclass

import numpy as np

DAY_S = 86400.0
RATES = (
    0.25, 0.20, 0.16, 0.15, 0.16, 0.20, 0.30, 0.45, 0.65, 0.85, 0.95, 1.00,
    0.95, 0.95, 1.00, 0.98, 0.90, 0.80, 0.70, 0.60, 0.55, 0.48, 0.40, 0.32,
)  # fmt: skip
"""Prompts per second at the beginning of each hour, as a share of the peak. The shape of an office day; assumed."""
LENGTHS = (0.25, 1.0, 2.0)
"""Tokens of the first prompt of a conversation, as a share of the planned prompt. Assumed, as all that follows."""
BY_DAY, BY_NIGHT = (0.45, 0.45, 0.10), (0.15, 0.50, 0.35)
"""Shares of these lengths among the conversations that begin from 8 to 20 h, and at other times: long ones at night."""
CONTINUES, MOST_TURNS = 0.5, 4
"""The probability that a conversation has another turn, and the most turns that it has."""
PAUSE_S = 60.0
"""Mean of the exponential time between two turns."""
NEW_TOKENS = 200
"""Tokens of a later turn's question."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """N requests in order of arrival. seconds: length of the simulated time. at: seconds, float64 [N].

    prompt, answer: tokens, int64 [N]. known: prompt tokens that begin an earlier prompt with its answer, int64 [N].
    before: the index of that earlier prompt, int64 [N]; -1 without one. pause: seconds since it arrived, float64 [N];
    infinite without one. share: the share of the real requests that these are.
    """

    seconds: float
    at: np.ndarray
    prompt: np.ndarray
    answer: np.ndarray
    known: np.ndarray
    before: np.ndarray
    pause: np.ndarray
    share: float = 1.0

    def busiest(self, window_s: float = 3600.0) -> tuple[float, int, int]:
        """Prompts per second, tokens of a prompt and of its answer: as many tokens of both kinds as in the window with
        most prompt tokens, all in long prompts.

        A prompt is as long as 95 % of the window's prompts are at most, so that these keep an SLO that it keeps.
        """
        count = max(1, round(self.seconds / window_s))
        window = np.minimum(self.at * count / self.seconds, count - 1).astype(int)
        tokens = np.bincount(window, self.prompt)
        there = window == tokens.argmax()
        prompt = int(np.percentile(self.prompt[there], 95))
        prompts = tokens.max() / prompt
        rate = float(prompts / self.share / self.seconds * count)
        return rate, prompt, max(1, round(self.answer[there].sum() / prompts))


def daily(qps: float, prompt: int, answer: int, seed: int = 0, share: float = 1.0) -> Traffic:
    """A day of conversations. qps: prompts per second at the peak. prompt: tokens of a first prompt of usual length.

    share: simulate this share of the requests.
    """
    random = np.random.default_rng(seed)
    chances = CONTINUES ** np.arange(MOST_TURNS)  # that a conversation has more than so many turns
    seconds = np.arange(0, DAY_S + 1, 60)
    rate = share * qps / chances.sum() * np.interp(seconds / 3600, np.arange(25), [*RATES, RATES[0]])
    begun = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * 60)])
    count = random.poisson(begun[-1])
    first = np.interp(np.sort(random.uniform(0, begun[-1], count)), begun, seconds)
    is_day = (first >= 8 * 3600) & (first < 20 * 3600)
    sums = np.where(is_day[:, None], np.cumsum(BY_DAY), np.cumsum(BY_NIGHT))
    length = np.round(prompt * np.take(LENGTHS, (random.uniform(size=count)[:, None] >= sums[:, :-1]).sum(axis=1)))
    more = random.uniform(size=(count, MOST_TURNS - 1)) < CONTINUES
    pauses = random.exponential(PAUSE_S, size=(count, MOST_TURNS - 1))
    turn = np.arange(MOST_TURNS)
    at = first[:, None] + np.concatenate([np.zeros((count, 1)), np.cumsum(pauses, axis=1)], axis=1)
    there = np.concatenate([np.ones((count, 1), bool), np.cumprod(more, axis=1).astype(bool)], axis=1) & (at < DAY_S)
    prompts = length[:, None] + turn * (answer + NEW_TOKENS)
    known = np.where(turn > 0, prompts - NEW_TOKENS, 0)
    paused = np.concatenate([np.full((count, 1), np.inf), pauses], axis=1)
    numbers = np.full(at.shape, -1)
    numbers[there] = np.argsort(np.argsort(at[there], kind="stable"))  # the place of each in the order of arrival
    before = np.concatenate([np.full((count, 1), -1), numbers[:, :-1]], axis=1)
    order = np.argsort(at[there], kind="stable")
    at, prompts, known, before, paused = (column[there][order] for column in (at, prompts, known, before, paused))
    answers = np.full(at.size, answer)
    return Traffic(DAY_S, at, prompts.astype(np.int64), answers, known.astype(np.int64), before, paused, share)
