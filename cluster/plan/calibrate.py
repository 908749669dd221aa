"""What a running deployment's own metrics say about its machines, in place of the committed efficiencies.

Its routers fit operations per second to the reads of each pool (`router.decision.pool_time`). Decoding, links and
memory are as without calibration.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from actors.observability.metric_table import EXPORT_PREFIX
from cluster.plan.gpus import Gpu, Machine
from cluster.top.scrapes import Scrape
from skim_common.errors import SkimError

SPEED = f"{EXPORT_PREFIX}skim_router_read_speed"
FIXED = f"{EXPORT_PREFIX}skim_router_read_fixed_seconds"
METRICS = (SPEED, FIXED)
POOLS = ("target", "speculator")


@dataclass(frozen=True, slots=True)
class Calibration:
    """target, speculator: what one rank of each pool reaches."""

    target: Machine
    speculator: Machine

    def shares(self, gpu: Gpu) -> dict[str, float]:
        """The share of the GPU's peak that the matrix products of each pool reach."""
        return {"target": self.target.linear / gpu.flops, "speculator": self.speculator.linear / gpu.flops}


def calibrated(scrape: Scrape, gpu: Gpu, ranks: Mapping[str, int]) -> Calibration:
    """From the metrics of all nodes. gpu: what the deployment runs on. ranks: tensor parallelism by pool.

    With several routers, their mean. Raises SkimError if a pool has not read enough prompts yet.
    """
    skim_s = sum(_mean(scrape, FIXED, pool=pool) or 0.0 for pool in POOLS)

    def machine(pool: str) -> Machine:
        linear = _mean(scrape, SPEED, pool=pool, part="linear")
        attention = _mean(scrape, SPEED, pool=pool, part="attention")
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


def _mean(scrape: Scrape, metric: str, **labels: str) -> float | None:
    found = [value for tags, value in scrape.samples.get(metric, {}).items() if labels.items() <= dict(tags).items()]
    return sum(found) / len(found) if found else None
