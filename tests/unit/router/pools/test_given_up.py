"""When a request gets another replica, and when it is given up."""

import asyncio

import pytest

from benchmarks.mock_engines.target import MockTarget
from kv_transfer.messages import GenerateRequest
from router.options.errors import HttpError
from router.pools.migration import (
    HANDOVER_PAUSE_S,
    MAX_DEATHS,
    MAX_REFUSALS,
    AnswerRecord,
    DeadlyRequestError,
    GivenUpError,
    migrate,
)
from skim_common.errors import EngineUnavailableError
from tests.unit.router.conftest import MODELS
from tests.unit.router.lost_replicas import PROMPT, Replicas, run, told


@pytest.fixture(scope="module")
def engine() -> MockTarget:
    return MockTarget(str(MODELS / "target"))


@pytest.mark.parametrize("lives", [(0, 0), (2, 0), (0, 1), (3, 4)])
async def test_given_up_when_two_replicas_died_under_it(engine: MockTarget, lives: tuple[int, int]) -> None:
    """Also with tokens in between: a request that kills each replica after some tokens would kill all of them."""
    replicas = Replicas(engine, *lives, *[0] * 9)
    with pytest.raises(DeadlyRequestError, match="two target replicas died while they ran this request") as caught:
        await run(replicas, max_tokens=20)
    assert len(replicas.requests) == MAX_DEATHS
    assert HttpError.of(caught.value).status == 500
    assert HttpError.of(caught.value).headers == {"x-should-retry": "false"}


async def test_one_death_and_many_handovers_are_survived(engine: MockTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("router.pools.migration.HANDOVER_PAUSE_S", 0.0)
    replicas = Replicas(engine, 1, 0, 1, 1, 1, causes=["drained", "died", "drained", "drained", "drained"])
    outputs, moves = await run(replicas, max_tokens=9)
    assert (len(told(outputs)[0][0]), [move.cause for move in moves].count("died")) == (9, 1)


async def test_replicas_that_were_gone_before_do_not_count_as_deaths(engine: MockTarget) -> None:
    outputs, moves = await run(Replicas(engine, None, None, 3, None, None), max_tokens=5)  # one death of five
    assert (len(told(outputs)[0][0]), len(moves)) == (5, 5)
    replicas = Replicas(engine, *[None] * 9)
    with pytest.raises(GivenUpError, match="no target replica could take this request"):
        await run(replicas, max_tokens=5)
    assert len(replicas.requests) == MAX_REFUSALS
    with pytest.raises(GivenUpError, match="no target replica could take this request"):
        await run(Replicas(engine, None, None, None, 9), max_tokens=5)


async def test_a_drained_replica_hands_over_and_is_nobodys_fault(engine: MockTarget, monkeypatch) -> None:
    monkeypatch.setattr("router.pools.migration.HANDOVER_PAUSE_S", 0.0)
    outputs, moves = await run(Replicas(engine, 0, 0, 0, 2, 0, 0, causes="drained"), max_tokens=5)
    assert (len(told(outputs)[0][0]), {move.cause for move in moves}) == (5, {"drained"})


async def test_a_second_handover_in_a_row_waits(engine: MockTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses, sleep = [], asyncio.sleep

    async def noted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", noted)
    _, moves = await run(Replicas(engine, 0, 0, 0, 2, 0, causes="drained"), max_tokens=5)
    assert len(moves) == 5
    # The second and the third of three in a row, and the second of the two after two tokens.
    assert [pause for pause in pauses if pause] == [HANDOVER_PAUSE_S] * 3


async def test_without_migration_an_answer_that_has_begun_ends_with_an_error(engine: MockTarget) -> None:
    """Negative control: this is what every stream of a dead replica did before."""
    request = GenerateRequest("r", PROMPT, {"max_tokens": 9})
    broken = migrate(AnswerRecord(request), Replicas(engine, 4).generate, lambda move: None, enabled=False)
    assert [bool(await anext(broken)) for _ in range(4)] == [True] * 4
    with pytest.raises(EngineUnavailableError, match="died during its answer"):
        await anext(broken)
    outputs = [
        o async for o in migrate(AnswerRecord(request), Replicas(engine, 0).generate, lambda move: None, enabled=False)
    ]
    assert outputs[-1].finished
