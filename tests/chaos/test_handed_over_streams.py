"""Streams go on while target replicas are updated, killed or stopped, with the bytes of an undisturbed run."""

import asyncio
import random
import time
from collections.abc import Sequence
from typing import Any

import httpx
import pytest

from cluster.config.load import config_from_settings
from cluster.serve.deployment import apply
from tests.chaos.conftest import await_answers, settings_in
from tests.chaos.support.load import CLIENTS, Load
from tests.chaos.support.lost_replicas import (
    Killer,
    Stream,
    await_running,
    differing,
    disturbed,
    greedy_bodies,
    migrations,
    running_replicas,
    stream,
    streams,
)
from tests.e2e.conftest import Served

pytestmark = pytest.mark.usefixtures("on_its_ray")

BODIES = greedy_bodies(12, prompt_tokens=1100, answer_tokens=150)
"""Each stream takes 4 to 5 s."""

LONG_BODIES = greedy_bodies(5, prompt_tokens=1100, answer_tokens=300)
"""Each stream takes about 8 s, longer than a stopping replica has. Each of two replicas has at least one of them."""
MOST_ON_ONE = len(LONG_BODIES) - 1
DRAIN_TIMEOUT_S = 4.0


@pytest.fixture(scope="module")
def settings(served: Served) -> dict[str, Any]:
    before = settings_in(served.log.parent)
    latencies = {"prefill_ms": 20.0, "decode_ms": 25.0}
    target = {**before["target"], "engine_options": latencies, "drain_timeout_s": DRAIN_TIMEOUT_S}
    # Both replicas may be dead at a time: a stream that begins then must wait, too.
    patient = {"admission_timeout_s": 60.0, "pool_down_after_s": 60.0}
    router = {**before["router"], "port": served.port, **patient}
    speculator = {**before["speculator"], "engine_options": {}}
    return {**before, "speculator": speculator, "target": target, "router": router}


def use(settings: dict[str, Any]) -> None:
    apply(config_from_settings(settings), progress=lambda line: None)
    await_running(settings["target"]["replicas"])


@pytest.fixture(scope="module")
def updated(served: Served, settings: dict[str, Any]) -> Load:
    """Clients that asked during the update from the deployment of the other modules to that of this one."""
    with httpx.Client(base_url=served.url, timeout=120) as client:
        await_answers("target", 2, client)
    before = {*running_replicas()}
    with Load(served.url) as load:
        load.go_on(CLIENTS)
        use(settings)
        load.go_on()
    assert not before & {*running_replicas()}
    return load


def test_an_update_replaces_all_targets_and_no_request_fails(updated: Load) -> None:
    assert updated.failed == []


@pytest.fixture(scope="module")
def quiet(served: Served, updated: Load) -> list[Stream]:
    return asyncio.run(streams(served.url, BODIES, 6))


def test_all_streams_complete_while_a_replica_is_killed_every_2_s(served: Served, quiet: list[Stream]) -> None:
    """Unless both replicas died under one: it gets no third, and what it has sent is right."""
    seed = random.randrange(10**6)
    print("seed", seed)
    killer = Killer(random.Random(seed), count=2, every_s=2.0)
    moved = asyncio.run(disturbed(served.url, BODIES, 6, killer))
    assert killer.killed >= 1
    refused = [at for at, got in enumerate(moved) if any("two target replicas died" in error for error in got.errors)]
    assert differing(quiet, moved) == refused
    for at in refused:
        assert quiet[at].tokens[: len(moved[at].tokens)] == moved[at].tokens
    assert len(refused) < len(BODIES)


@pytest.fixture(scope="module")
def quiet_long(served: Served, quiet: list[Stream]) -> list[Stream]:
    return asyncio.run(streams(served.url, LONG_BODIES, len(LONG_BODIES)))


def one_stops(
    served: Served, settings: dict[str, Any], bodies: Sequence[dict[str, Any]] = LONG_BODIES, wait_s: float = 0
) -> list[Stream]:
    """The streams, while Serve stops one of the two replicas under them. wait_s: until then, where none has begun."""
    settings = {**settings, "target": {**settings["target"], "max_ongoing_requests": MOST_ON_ONE}}
    use(settings)
    fewer = config_from_settings({**settings, "target": {**settings["target"], "replicas": 1}})

    async def run() -> list[Stream]:
        begun = [asyncio.Event() for _ in bodies]
        async with httpx.AsyncClient(base_url=served.url, timeout=120) as client:
            running = asyncio.gather(
                *(stream(client, *each) for each in zip(bodies, [e.set for e in begun], strict=True))
            )
            await (asyncio.sleep(wait_s) if wait_s else asyncio.gather(*(event.wait() for event in begun)))
            await asyncio.to_thread(apply, fewer, progress=str)
            return await running

    return asyncio.run(run())


@pytest.mark.nightly
def test_a_replica_that_stops_hands_over_the_streams_that_outlive_its_time(
    served: Served, quiet_long: list[Stream], settings: dict[str, Any]
) -> None:
    moved = one_stops(served, settings)
    assert differing(quiet_long, moved) == []
    # Without the handover, Serve would kill the replica, and the cause would be `died`.
    causes = [migration["cause"] for stream in moved for migration in migrations(served.url, stream)]
    assert causes
    assert set(causes) == {"drained"}


@pytest.mark.nightly
def test_a_replica_that_stops_hands_over_requests_without_a_token(
    served: Served, updated: Load, settings: dict[str, Any]
) -> None:
    """Each prefill takes longer than a stopping replica has. Two such stops would end the request as its two deaths."""
    slow = {"prefill_ms": 2e3 * DRAIN_TIMEOUT_S, "decode_ms": 1.0}
    settings = {**settings, "target": {**settings["target"], "engine_options": slow}}
    moved = one_stops(served, settings, greedy_bodies(len(LONG_BODIES), prompt_tokens=1100, answer_tokens=4), wait_s=2)
    assert [stream.errors for stream in moved] == [[]] * len(moved)
    causes = [migration["cause"] for stream in moved for migration in migrations(served.url, stream)]
    assert causes
    assert set(causes) == {"drained"}


@pytest.mark.nightly
def test_without_migration_the_streams_break(served: Served, quiet: list[Stream], settings: dict[str, Any]) -> None:
    """Negative control."""
    use({**settings, "router": {**settings["router"], "migration": False}})
    deadline = time.monotonic() + 60
    while True:
        moved = asyncio.run(disturbed(served.url, BODIES, 12, Killer(random.Random(1), count=2, every_s=1.5)))
        if differing(quiet, moved):
            break
        assert time.monotonic() < deadline, "no stream broke although its replica was killed"
    broken = [moved[index] for index in differing(quiet, moved)]
    assert all(stream.errors for stream in broken)


@pytest.mark.nightly
def test_without_migration_a_replica_that_stops_breaks_them_too(
    served: Served, quiet_long: list[Stream], settings: dict[str, Any]
) -> None:
    """Negative control. The router runs without migration since the test above."""
    without = {**settings, "router": {**settings["router"], "migration": False}}
    moved = one_stops(served, without)
    broken = [moved[index] for index in differing(quiet_long, moved)]
    assert broken
    assert all(stream.errors for stream in broken)
