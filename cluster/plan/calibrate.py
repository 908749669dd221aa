"""What a running deployment's own metrics say about its machines, in place of the committed efficiencies.

Its routers fit operations per second to the reads of each pool (`router.decision.pool_time`). Decoding, links and
memory are as without calibration.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from cluster.plan.gpus import Gpu, Machine
from skim_common.errors import SkimError

SPEED, FIXED = "skim_router_read_speed", "skim_router_read_fixed_seconds"
POOLS = ("target", "speculator")

Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""The labels and the value of each series of the endpoint's `/metrics`, by its name."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """target, speculator: what one rank of each pool reaches."""

    target: Machine
    speculator: Machine

    def shares(self, gpu: Gpu) -> dict[str, float]:
        """The share of the GPU's peak that the matrix products of each pool reach."""
        return {"target": self.target.linear / gpu.flops, "speculator": self.speculator.linear / gpu.flops}


def calibrated(samples: Samples, gpu: Gpu, ranks: Mapping[str, int]) -> Calibration:
    """gpu: what the deployment runs on. ranks: tensor parallelism by pool.

    Raises SkimError if a pool has not read enough prompts yet.
    """
    skim_s = sum(_value(samples, FIXED, pool=pool) or 0.0 for pool in POOLS)

    def machine(pool: str) -> Machine:
        linear = _value(samples, SPEED, pool=pool, part="linear")
        attention = _value(samples, SPEED, pool=pool, part="attention")
        known = linear or attention
        if known is None:
            raise SkimError(
                f"--calibrate: the {pool} has not read enough prompts yet; send at least three of several lengths"
            )
        # The measured times contain the host's time for each token.
        return replace(
            Machine.of(gpu),
            linear=(linear or known) / ranks[pool],
            attention=(attention or known) / ranks[pool],
            token_s=0.0,
            skim_s=skim_s,
        )

    return Calibration(machine("target"), machine("speculator"))


def _value(samples: Samples, metric: str, **labels: str) -> float | None:
    """The endpoint gives the mean over its routers."""
    return next((value for tags, value in samples.get(metric, ()) if labels.items() <= tags.items()), None)
