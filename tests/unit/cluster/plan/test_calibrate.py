"""The machines of a plan from the metrics of a running deployment."""

import pytest

from cluster.plan.calibrate import FIXED, SPEED, calibrated
from cluster.plan.gpus import GPUS, Machine
from skim_common.errors import SkimError

GPU = GPUS["h100"]
RANKS = {"target": 4, "speculator": 1}


def labels(pool, **others):
    return {"pool": pool, **others}


def test_each_rank_has_its_part():
    speed = [(labels("target", part="linear"), 6e14), (labels("target", part="attention"), 2e14)]
    speed.append((labels("speculator", part="linear"), 5e13))
    fixed = [(labels("target"), 0.01), (labels("speculator"), 0.02)]
    found = calibrated({SPEED: speed, FIXED: fixed}, GPU, RANKS)
    assert (found.target.linear, found.target.attention) == (1.5e14, 5e13)
    # A pool whose reads do not tell the two parts apart has one speed.
    assert (found.speculator.linear, found.speculator.attention) == (5e13, 5e13)
    assert found.target.skim_s == pytest.approx(0.03)
    assert found.target.bandwidth == Machine.of(GPU).bandwidth
    assert found.shares(GPU)["target"] == pytest.approx(1.5e14 / GPU.flops)


def test_a_pool_that_has_not_read_is_named():
    with pytest.raises(SkimError, match="the speculator has not read enough prompts yet; send at least three"):
        calibrated({SPEED: [(labels("target", part="linear"), 1e12)]}, GPU, RANKS)
