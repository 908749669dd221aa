"""`min_keep` is a floor in every mode: no smaller share is kept."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from speculator_service.service import SpeculatorService
from tests.unit.kv_transfer.layouts import relaid
from tests.unit.speculator_service.test_service_records import FIRST, SECOND

FLOOR = 0.6
WAYS = [
    {"keep_rate": 0.1},
    {"keep_rate": 0.1, "coverage": 0.01},
    {"keep_rate": "auto", "coverage": 0.01},
    {"keep_rate": "auto", "coverage": 0.01, "max_keep": 0.7},
]
CUTS = ["text", "chunk", "token"]


@pytest.fixture
def select(make_request, demo_speculator):
    """Select the first turn's prompt, or after it that of a second turn. Returns how many tokens are kept."""

    async def run(*, later=False, first=None, **options):
        service = SpeculatorService(MockSpeculator(demo_speculator))

        def asked(ids, end, **given):
            request = make_request(ids, [(0, 32), (len(ids) - 40, len(ids))], **given)
            units = np.arange(0, len(ids), 16, dtype=np.int32) if given["granularity"] == "text" else None
            return relaid(request, question=(end - 20, end), **({} if units is None else {"units": units}))

        cut = options["granularity"]
        if not later:
            return int((await service.select(asked(FIRST, len(FIRST), **options))).kept.positions.size)
        await service.select(asked(FIRST, len(FIRST), granularity=cut, **(first or {"keep_rate": 0.1})))
        second = replace(asked(SECOND, len(SECOND), **options), request_id="r2")
        return int((await service.select(second)).kept.positions.size)

    return run


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_no_way_to_select_keeps_less_than_the_floor(select, way, cut, later):
    least = FLOOR * len(SECOND if later else FIRST) - 32  # the last chunk of a prompt is shorter
    assert await select(granularity=cut, later=later, **way) < least / 2
    assert await select(granularity=cut, later=later, min_keep=FLOOR, **way) >= least


@pytest.mark.parametrize("way", WAYS, ids=str)
async def test_a_floor_below_what_is_kept_changes_nothing(select, way):
    way = {**way, **({"coverage": 0.4} if "coverage" in way else {})}
    assert await select(granularity="text", min_keep=0.01, **way) == await select(granularity="text", **way)


@pytest.mark.parametrize("rate", [0.01, 0.04])
async def test_the_default_is_no_more_than_the_keep_rate(select, rate):
    assert await select(granularity="token", keep_rate=rate) < 0.05 * len(FIRST) + 72
