"""Two simulated pools behind one router's forecasts: with caches, speeds and a clock of the test."""

import random
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.mock_engines.compute import MockPrefixCache
from kv_transfer.messages import KeptPrompt, Selection, SessionHandle
from kv_transfer.options import SHORT_TEXT
from kv_transfer.prefix_hash import block_hashes
from router.decision.forecast import Forecaster
from router.decision.ledger import BLOCK_TOKENS
from router.options.request import PrefillOptions
from skim_common.models.costs import LINEAR, Read, ReadCost
from skim_common.models.info import ModelInfo

OPTIONS = PrefillOptions(keep_rate=0.2, protect_last=64)
BLOCK = 16
LATE = 64
"""Tokens of late chunks in each extended prompt."""
ENDLESS = 10**9
INFO = ModelInfo("m", "A", 150_000, "f", ENDLESS, ENDLESS, "simulated")


@dataclass
class Pool:
    """An engine with an LRU prefix cache of `capacity` tokens.

    A read takes fixed + per_token * (tokens + per_pair * the work of attention in tokens, by `cost`) milliseconds.
    noise: the standard deviation of a time, as a share of it.
    """

    fixed: float
    per_token: float
    noise: float = 0.0
    cost: ReadCost = LINEAR
    per_pair: float = 1.0
    capacity: int = ENDLESS
    draw: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self):
        self._cache = MockPrefixCache(self.capacity, BLOCK)

    @property
    def info(self):
        """What a replica tells of itself."""
        return replace(INFO, read_cost=self.cost, cache_tokens=self.capacity)

    def read(self, ids):
        found = next((i for i, block in enumerate(block_hashes(ids, BLOCK)) if block not in self._cache), len(ids))
        return Read.of(len(ids), BLOCK * found)

    def time(self, ids):
        read = self.read(ids)
        attention = self.cost.attention_flops(read) / self.cost.linear
        return self.fixed + self.per_token * (read.tokens + self.per_pair * attention)

    def run(self, ids, answer=()):
        """The cached tokens, and the milliseconds with noise."""
        cached, ms = self.read(ids).cached, self.time(ids) * max(0.5, self.draw.gauss(1, self.noise))
        self._cache.hold(block_hashes([*ids, *answer], BLOCK))
        return cached, ms


class World:
    """Both pools and one router. run(): one prompt by the router's choice; `regrets` collects what it cost, `took` the
    milliseconds to its first token without noise, `ratios` the estimate divided by the real time, and `missed` whether
    a pool had evicted what the router believed to be cached.

    extends: kept prompts extend the earlier turn's.
    """

    def __init__(self, noise=0.0, target_per_token=1.0, *, extends=False, speculator=None, target=None):
        self.now = 0.0
        self.speculator = speculator or Pool(20, 0.1, noise)
        self.target = target or Pool(40, target_per_token, noise)
        self.forecaster = Forecaster(lambda: self.now)
        self.modes, self.regrets, self.ratios, self.took, self.missed = [], [], [], [], []
        self.extends, self._records = extends, []

    def kept(self, ids):
        """Every fifth chunk and the last 64 tokens. Of a later turn: what stands, the answer, late chunks, the rest."""
        ids = np.asarray(ids)
        known = [record for record in self._records if np.array_equal(record[0], ids[: record[0].size])]
        old = max(known, key=lambda record: record[0].size, default=None)
        begun = old[0].size if old else 0
        new = np.arange(begun, ids.size)
        if not begun or new.size - OPTIONS.protect_last > SHORT_TEXT:
            new = new[(new // 32 % 5 == 0) | (new >= ids.size - 64)]
        if old:
            new = np.concatenate([old[1], np.setdiff1d(np.arange(begun), old[1])[:LATE], new])
        return KeptPrompt(
            ids[new].astype(np.int32), new.astype(np.int32), ids.size, session=SessionHandle("here:1", "s")
        )

    def run(self, ids, answer, mode=None):
        """The mode of the prompt. mode: the client's wish."""
        ids = np.array(ids, np.int32)
        for pool, engine in (("speculator", self.speculator), ("target", self.target)):
            self.forecaster.know(pool, engine.info, 1.0)
        forecast = self.forecaster.look(ids, None, OPTIONS)
        # Positions are part of a block's key in the target: kept prompts share nothing with dense ones here.
        kept = self.kept(ids)
        marked = [-1, *kept.token_ids.tolist()]
        truth = {"dense": self.target.time(ids), "speculative": self.speculator.time(ids) + self.target.time(marked)}
        decision, real, missed = forecast.choice, 0.0, False
        mode = mode or ("speculative" if decision.speculative else "dense")
        if mode == "speculative":
            cached, real = self.speculator.run(ids, answer)
            selection = Selection(kept, 0.9, timings={"speculate": real}, cached_tokens=cached)
            missed = 2 * cached < forecast.read.tokens - BLOCK_TOKENS
            self.forecaster.selected(forecast, selection, OPTIONS)
            prompt, (cached, ms) = kept, self.target.run(marked, answer)
            if self.extends:
                whole = np.append(ids, np.array(answer, np.int32))
                self._records.append((whole, np.append(kept.positions, np.arange(ids.size, whole.size))))
        else:
            prompt, (cached, ms) = KeptPrompt.dense(ids), self.target.run(ids, answer)
        self.forecaster.began(forecast, prompt, cached, ms, 0.0)
        self.forecaster.ended(forecast, prompt, np.array(answer, np.int32))
        self.now += 5.0
        self.modes.append(mode)
        self.took.append(truth[mode])
        self.regrets.append(truth[mode] / min(truth.values()))
        believed = {"dense": forecast.dense.tokens, "speculative": forecast.kept.kept}[mode]
        missed |= 2 * cached < believed - BLOCK_TOKENS
        self.missed.append(missed)
        if forecast.estimate is not None:
            self.ratios.append(forecast.estimate.of(mode) / (real + ms))
        return decision.reason, mode

    def learn(self):
        """Measure both pools with prompts of several sizes."""
        for i, size in enumerate((300, 4000, 900, 12_000)):
            self.run(text(f"first {i}", size), [], "speculative")


def text(name, tokens):
    return random.Random(name).choices(range(150_000), k=tokens)
