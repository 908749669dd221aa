"""Engines for simulations, whose times are settings."""

from dataclasses import dataclass

from cluster.plan.engine import LOOK_AHEAD
from skim_common.models.costs import Read


@dataclass
class Timed:
    """Seconds of a prompt's token, and of a decode step."""

    token_s: float = 1e-4
    decode_s: float = 0.01
    chunk: int = 8192

    def read_s(self, read: Read) -> float:
        return self.token_s * read.tokens

    def select_s(self, read: Read) -> float:
        return self.read_s(read) + LOOK_AHEAD * self.decode_s

    def step_s(self, rows: float, context: float) -> float:
        return self.decode_s
