"""Two simulated pools behind one router's forecasts: with caches, speeds and a clock of the test."""

import random
from dataclasses import dataclass, field

import numpy as np

from kv_transfer.messages import KeptPrompt, Selection, SessionHandle
from kv_transfer.prefix_hash import block_hashes
from router.decision.forecast import Forecaster
from router.options.request import PrefillOptions

OPTIONS = PrefillOptions(keep_rate=0.2)
BLOCK = 16


@dataclass
class Pool:
    """An engine with a prefix cache: fixed + per_token * computed tokens, in milliseconds."""

    fixed: float
    per_token: float
    noise: float = 0.0
    cache: set = field(default_factory=set)
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def cached(self, ids):
        hashes = block_hashes(ids, BLOCK)
        return BLOCK * next((i for i, block in enumerate(hashes) if block not in self.cache), len(hashes))

    def time(self, ids):
        return self.fixed + self.per_token * max(1, len(ids) - self.cached(ids))

    def run(self, ids, answer=()):
        cached, ms = self.cached(ids), self.time(ids) * (1 + self.noise * self.draw.uniform(-1, 1))
        self.cache |= {*block_hashes([*ids, *answer], BLOCK)}
        return cached, ms


class World:
    """Both pools and one router. run(): one prompt by the router's choice; `regrets` collects what it cost, and `took`
    the milliseconds to its first token.
    """

    def __init__(self, forecaster=None, noise=0.0, target_per_token=1.0):
        self.now = 0.0
        self.speculator = Pool(20, 0.1, noise)
        self.target = Pool(40, target_per_token, noise)
        self.forecaster = forecaster or Forecaster(lambda: self.now)
        self.modes, self.regrets, self.errors, self.took = [], [], [], []

    def kept(self, ids):
        """Every fifth chunk and the last 64 tokens, as a selection that knows no earlier one."""
        positions = [i for i in range(len(ids)) if i // 32 % 5 == 0 or i >= len(ids) - 64]
        return KeptPrompt(
            np.array([ids[i] for i in positions], np.int32),
            np.array(positions, np.int32),
            len(ids),
            session=SessionHandle("here:1", "s"),
        )

    def run(self, ids, answer, mode=None):
        """The mode of the prompt. mode: the client's wish."""
        ids = np.array(ids, np.int32)
        forecast = self.forecaster.look(ids, None, OPTIONS, 65)
        # Positions are part of a block's key in the target: kept prompts share nothing with dense ones here.
        kept, marked = self.kept(ids), [-1, *self.kept(ids).token_ids.tolist()]
        truth = {"dense": self.target.time(ids), "speculative": self.speculator.time(ids) + self.target.time(marked)}
        decision = forecast.choice
        mode = mode or ("speculative" if decision.speculative else "dense")
        if mode == "speculative":
            cached, ms = self.speculator.run(ids, answer)
            selection = Selection(kept, 0.9, timings={"speculate": ms}, cached_tokens=cached)
            self.forecaster.selected(forecast, selection, OPTIONS)
            prompt, (cached, ms) = kept, self.target.run(marked, answer)
        else:
            prompt, (cached, ms) = KeptPrompt.dense(ids), self.target.run(ids, answer)
        self.forecaster.began(forecast, prompt, cached, ms, 0.0)
        self.forecaster.ended(forecast, prompt, np.array(answer, np.int32))
        self.now += 5.0
        self.modes.append(mode)
        self.took.append(truth[mode])
        self.regrets.append(truth[mode] / min(truth.values()))
        if forecast.estimate is not None:
            self.errors.append(max(forecast.estimate.of(m) / truth[m] for m in truth))
        return decision.reason, mode

    def learn(self):
        """Measure both pools with prompts of several sizes."""
        for i, size in enumerate((300, 4000, 900, 12_000)):
            self.run(text(f"first {i}", size), [], "speculative")


def text(name, tokens):
    return random.Random(name).choices(range(150_000), k=tokens)
