"""Admission in virtual time: what waits, what is refused before any work, and in which order the pools get it."""

import asyncio
import functools
import math

import pytest

from benchmarks.harness.virtual_time import run
from kv_transfer.messages import GenerateOutput
from router.admission import pool_load
from router.admission.controller import Admission
from router.admission.pool_load import ENOUGH
from router.admission.ticket import AdmissionRequest, OverloadedError, PromptGroup, Ticket
from router.decision.choice import Work
from skim_common.deadline import Deadline
from tests.unit.actors.local_meter import LocalMeter

PROMPT = Work(target_ms=1000.0)


class World:
    """An admission before a target with one server that computes one prompt at a time. ran: the names, in order."""

    def __init__(self, **limits):
        self.meter = LocalMeter()
        self.admission = Admission(self.meter, **limits)
        self.server = asyncio.Lock()
        self.ran, self.refused = [], {}
        self.without_drafts = set()  # names of prompts that the speculator gives no session

    async def prefill(self, name, ms):
        arrived = asyncio.get_running_loop().time()
        async with self.server:
            waited = asyncio.get_running_loop().time() - arrived
            self.ran.append(name)
            await asyncio.sleep(ms / 1e3)
        return GenerateOutput([], True, timings={"queue": 1e3 * waited, "prefill": ms})

    async def ask(self, name, work=PROMPT, timeout_ms=None, less=None, **request):
        """The ticket that the prompt had; None if it was refused."""
        request = AdmissionRequest(deadline=Deadline.after(timeout_ms), **request)
        try:
            async with self.admission.admitted(request, work, less) as ticket:
                if work.selects:
                    await asyncio.sleep(work.speculator_ms / 1e3)
                    self.admission.selected(
                        ticket, 0.0, drafts=bool(work.drafts_ms) and name not in self.without_drafts
                    )
                self.admission.sent(ticket)
                self.admission.prefilled(ticket, await self.prefill(name, ticket.work.target_ms))
                self.admission.answered(ticket, 1)
                return ticket
        except OverloadedError as error:
            self.refused[name] = error
            return None

    async def learn(self):
        """Let the router see the waits of a queue."""
        await asyncio.gather(*(self.ask(f"learn {i}") for i in range(6)))
        self.ran.clear()

    def start(self, name, **request):
        return asyncio.create_task(self.ask(name, **request))

    def reasons(self):
        return [tags["reason"] for _, tags in self.meter.recorded.get("skim_router_refused_total", [])]


def scenario(test):
    """Run an async test in virtual time."""

    @functools.wraps(test)
    def in_virtual_time(**parameters):
        run(test(**parameters))

    return in_virtual_time


@scenario
async def test_a_wait_over_the_limit_is_refused_with_the_time_until_it_fits():
    world = World(max_wait_s=5.0)
    await world.learn()
    tasks = [world.start(i) for i in range(12)]
    await asyncio.sleep(0.01)
    assert sorted(world.refused) == list(range(6, 12))
    assert {error.status for error in world.refused.values()} == {429}
    assert world.reasons() == ["wait"] * 6
    retry = world.refused[6].retry_after_s
    # Who comes back at that time is accepted; half a second earlier, the queue is still too long.
    await asyncio.sleep(retry)
    assert await world.start("again") is not None
    await asyncio.gather(*tasks)
    assert not {*range(6, 12)} & set(world.ran)


@scenario
async def test_without_a_limit_nothing_is_refused():
    """Negative control."""
    world = World()
    await world.learn()
    tickets = await asyncio.gather(*(world.ask(i) for i in range(30)))
    assert None not in tickets
    assert world.refused == {}


@scenario
async def test_a_request_that_would_miss_its_deadline_is_refused_at_once():
    world = World()
    await world.learn()
    ahead = [world.start(i) for i in range(5)]
    await asyncio.sleep(0.01)
    assert await world.ask("late", timeout_ms=4000) is None
    assert world.refused["late"].reason == "deadline"
    in_time = await world.ask("in time", timeout_ms=9000)
    assert in_time is not None
    await asyncio.gather(*ahead)
    assert "late" not in world.ran


@scenario
async def test_an_idle_router_refuses_nothing():
    """Otherwise a wrong measurement would refuse everything for ever."""
    world = World(max_wait_s=1.0)
    await world.learn()
    assert await world.ask("alone", timeout_ms=10) is not None


@scenario
async def test_the_answer_s_time_counts_too():
    world = World()
    await world.learn()
    for _ in range(20):
        world.admission._answers.learn(100, 5000)
    ahead = world.start("ahead")
    await asyncio.sleep(0.01)
    assert await world.ask("long", work=Work(target_ms=1000, most_tokens=100), timeout_ms=6000) is None
    assert await world.ask("short", work=Work(target_ms=1000, most_tokens=1), timeout_ms=6000) is not None
    await ahead


@scenario
async def test_a_full_router_refuses_until_one_leaves():
    world = World(most=3)
    tasks = [world.start(i) for i in range(3)]
    await asyncio.sleep(0.01)
    with pytest.raises(OverloadedError):
        world.admission.refuse_early(AdmissionRequest())
    assert await world.ask("fourth") is None
    assert world.reasons() == ["full", "full"]
    await tasks[0]
    assert await world.ask("fifth") is not None


@scenario
async def test_beyond_what_the_pool_drains_soon_prompts_wait_here_by_priority():
    world = World()
    await world.learn()
    tasks = [world.start(f"low {i}", priority=5) for i in range(5)]
    await asyncio.sleep(0.01)
    tasks.append(world.start("high", priority=-1))
    await asyncio.gather(*tasks)
    assert world.ran.index("high") <= 2
    assert world.ran[-1] == "low 4"


@scenario
async def test_a_flood_of_one_key_does_not_delay_another():
    world = World()
    await world.learn()
    tasks = [world.start(f"flood {i}", key="a") for i in range(20)]
    await asyncio.sleep(0.01)
    tasks.append(world.start("calm", key="b"))
    await asyncio.gather(*tasks)
    assert world.ran.index("calm") <= 3


@scenario
async def test_with_one_key_the_flood_comes_first():
    """Negative control."""
    world = World()
    await world.learn()
    tasks = [world.start(f"flood {i}") for i in range(20)]
    await asyncio.sleep(0.01)
    tasks.append(world.start("calm"))
    await asyncio.gather(*tasks)
    assert world.ran.index("calm") == 20


@scenario
async def test_a_shorter_prompt_is_offered_before_a_refusal():
    world = World()
    await world.learn()
    ahead = [world.start(i) for i in range(3)]
    await asyncio.sleep(0.01)
    ticket = await world.ask("shed", work=Work(target_ms=4000), less=Work(target_ms=500), timeout_ms=6000)
    assert ticket.keeps_less
    await asyncio.gather(*ahead)


@scenario
async def test_the_load_is_the_share_of_the_longest_wait():
    world = World(max_wait_s=10.0)
    await world.learn()
    assert world.admission.load() == 0
    tasks = [world.start(i) for i in range(5)]
    await asyncio.sleep(0.01)
    assert world.admission.load() == pytest.approx(0.5, abs=0.15)
    last = await world.ask("last")
    assert last.load == pytest.approx(0.5, abs=0.15)
    assert not last.keeps_less
    await asyncio.gather(*tasks)


@scenario
async def test_later_prompts_of_a_request_are_not_refused():
    world = World(most=1, max_wait_s=2.0)
    await world.learn()
    world.meter.recorded.clear()
    group = PromptGroup()
    tickets = await asyncio.gather(*(world.ask(i, group=group) for i in range(8)))
    assert None not in tickets
    assert group.prompts == 8
    other = await asyncio.gather(*(world.ask(f"other {i}", timeout_ms=1) for i in range(1)))
    assert other != [None]  # the router is idle again


@scenario
async def test_what_is_cancelled_makes_room():
    world = World()
    await world.learn()
    tasks = [world.start(i) for i in range(6)]
    await asyncio.sleep(0.01)
    for task in tasks[1:5]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert world.ran[-1] == 5
    admission = world.admission
    assert (len(admission._queue), admission._ongoing) == (0, 0)
    for pool in (admission._speculator, admission._target):
        assert (pool.requests, pool.ahead_ms) == (0, 0.0)


@scenario
async def test_a_dense_prompt_overtakes_those_that_wait_for_the_speculator():
    world = World()
    for _ in range(5):
        world.admission._speculator.learn(1000, 1000)
    selecting = Work(1000.0, 100.0, selects=True)
    tasks = [world.start(f"select {i}", work=selecting) for i in range(4)]
    await asyncio.sleep(0.01)
    tasks.append(world.start("dense", work=Work(target_ms=100)))
    await asyncio.gather(*tasks)
    assert world.ran[0] == "dense"


@pytest.mark.parametrize(
    ("headroom", "begun"),
    [
        ({}, 1),
        ({"target": 5.0}, 5),
        ({"speculator": 9.0}, 1),
    ],
)
def test_an_autoscaled_pool_gets_what_its_autoscaler_must_see(headroom, begun):
    async def scenario():
        world = World(headroom=headroom)
        await world.learn()
        tasks = [world.start(i) for i in range(12)]
        await asyncio.sleep(0.01)
        assert world.admission._target.requests == begun
        await asyncio.gather(*tasks)
        assert world.ran == list(range(12))

    run(scenario())


@scenario
async def test_new_sizes_act_on_the_requests_that_wait():
    world = World()
    await world.learn()
    tasks = [world.start(i) for i in range(12)]
    await asyncio.sleep(0.01)
    assert world.admission._target.requests == 1
    world.admission.resize(12, {"speculator": 0.0, "target": 5.0})
    assert world.admission._target.requests == 5
    with pytest.raises(OverloadedError, match="as many requests as it may"):
        world.admission.refuse_early(AdmissionRequest())
    await asyncio.gather(*tasks)


@pytest.mark.parametrize(("headroom", "begun"), [({}, 1), ({"speculator": 5.0}, 5)])
def test_an_autoscaled_speculator_does_so_too(headroom, begun):
    async def scenario():
        admission = Admission(LocalMeter(), headroom=headroom)
        for _ in range(ENOUGH):
            admission._speculator.learn(1000.0, 1000.0)
        tickets = [admission.admitted(AdmissionRequest(), Work(1000.0, 1.0, selects=True)) for _ in range(8)]
        entering = [asyncio.create_task(ticket.__aenter__()) for ticket in tickets]
        await asyncio.sleep(0.01)
        assert admission._speculator.requests == begun
        for task in entering:
            task.cancel()
        await asyncio.gather(*entering, return_exceptions=True)

    run(scenario())


@scenario
async def test_many_requests_that_would_miss_their_deadline_are_refused_at_once():
    """A pool that was stuck leaves a long queue behind, and none of it has enough time left."""
    world = World()
    await world.learn()
    target = world.admission._target
    target.enter("stuck", 1000.0)
    tasks = [world.start(i, work=Work(target_ms=1.0), timeout_ms=5000) for i in range(2000)]
    await asyncio.sleep(4.8)
    assert world.refused == {}
    target.leave("stuck")
    target.enter("other", 1.0)
    target.learn(0.0, 400.0)
    world.admission._dispatch()
    await asyncio.gather(*tasks)
    assert len(world.refused) == 2000
    assert {error.reason for error in world.refused.values()} == {"deadline"}
    assert len(world.admission._queue) == 0


async def offer(world, prompts, **request):
    """A new prompt of six seconds every three seconds, and what became of them by their names."""
    tasks = {}
    for number in range(prompts):
        tasks[number] = world.start(number, work=Work(target_ms=6_000.0), **request)
        await asyncio.sleep(3)
    return {name: await task for name, task in tasks.items()}


@pytest.mark.parametrize(("probe_s", "trapped"), [(pool_load.PROBE_S, False), (math.inf, True)])
@pytest.mark.parametrize("timeout_ms", [None, 11_000])
def test_a_pool_that_was_stuck_once_is_not_used_one_at_a_time_for_ever(monkeypatch, probe_s, trapped, timeout_ms):
    """The second case of each is the negative control: nothing measures the pace again."""
    monkeypatch.setattr(pool_load, "PROBE_S", probe_s)

    async def scenario():
        world = World(max_wait_s=5.0)
        world.server = asyncio.Semaphore(0)
        stuck = [world.start(i, work=Work(target_ms=6_000.0)) for i in range(6)]
        await asyncio.sleep(60)
        for _ in range(4):  # four servers take twice what comes
            world.server.release()
        await asyncio.gather(*stuck)
        await offer(world, 100, timeout_ms=timeout_ms)
        world.refused.clear()
        await offer(world, 100, timeout_ms=timeout_ms)
        assert len(world.refused) > 40 if trapped else world.refused == {}

    run(scenario())


@scenario
async def test_of_a_pool_with_a_right_pace_a_probe_takes_one_prompt_out_of_order():
    """One server, and prompts that are each too long to wait behind another in the pool."""
    world = World()
    await world.learn()
    tasks = [world.start(i) for i in range(30)]
    for _ in range(30):
        await asyncio.sleep(0.99)
        assert world.admission._target.requests <= 2
    await asyncio.gather(*tasks)
    assert world.ran == list(range(30))


DRAFTED = Work(speculator_ms=100.0, target_ms=1000.0, selects=True, drafts_ms=400.0)


@pytest.mark.parametrize(("refused", "aside_ms"), [(False, 400.0), (True, 0.0)])
@scenario
async def test_the_speculators_read_for_drafts_is_work_that_others_find_there(refused, aside_ms):
    """From the selection to the target's first output. It is no request of the pool."""
    world = World()
    world.without_drafts = {"a"} if refused else set()
    speculator = world.admission._speculator
    task = world.start("a", work=DRAFTED)
    await asyncio.sleep(0.05)
    assert (speculator.ahead_ms, world.admission.reading) == (100.0, 1)
    await asyncio.sleep(0.1)
    assert (speculator.ahead_ms, world.admission.reading) == (aside_ms, 0)
    await task
    assert (speculator.ahead_ms, world.admission.reading) == (0.0, 0)


@pytest.mark.parametrize("stage", ["select", "prefill"])
@scenario
async def test_a_prompt_that_ends_early_leaves_no_read_for_drafts(stage):
    world = World()
    task = world.start("a", work=DRAFTED)
    await asyncio.sleep(0.05 if stage == "select" else 0.5)
    task.cancel()
    await asyncio.wait({task})
    assert world.admission._speculator.ahead_ms == 0.0


@pytest.mark.parametrize("drafts_ms", [0.0, 400.0])
@scenario
async def test_the_wait_behind_queued_prompts_has_their_reads_for_drafts(drafts_ms):
    """The own first token does not wait for the own read, so a deadline leaves room for it."""
    admission = World().admission
    for pool in (admission._speculator, admission._target):
        for _ in range(ENOUGH):
            pool.learn(1000.0, 1000.0)
    queued = [Work(100.0, 10.0, selects=True, drafts_ms=drafts_ms)] * 3
    assert admission._wait_ms(DRAFTED, queued) == 3 * (100.0 + drafts_ms)
    request = AdmissionRequest(deadline=Deadline.after(2000))
    assert admission._slack_ms(request, DRAFTED) == 2000.0 - DRAFTED.total_ms
    ticket = Ticket(request, True, DRAFTED, 0.0, False, asyncio.get_running_loop().create_future())
    assert ticket.cost == 1500.0


SELECTION = Work(speculator_ms=10.0, selects=True, answers=False)


async def select_alone(world, ms=10.0):
    """The ticket of a prompt that ends with its selection."""
    async with world.admission.admitted(AdmissionRequest(), SELECTION) as ticket:
        await asyncio.sleep(ms / 1e3)
        world.admission.selected(ticket, 0.0)
    return ticket


@scenario
async def test_a_selection_without_an_answer_does_not_wait_for_the_target():
    world = World(max_wait_s=5.0)
    await world.learn()
    ahead = [world.start(i) for i in range(5)]
    await asyncio.sleep(0.01)
    ticket = await select_alone(world)
    assert (ticket.queued_ms, ticket.load) == (0.0, 0.0)
    assert len(world.ran) <= 1, "the target was busy all the time"
    with_answer = await world.ask("with answer", Work(speculator_ms=10.0, target_ms=1.0, selects=True))
    assert with_answer.queued_ms > 1000, "control: this one waits"
    await asyncio.gather(*ahead)


@pytest.mark.parametrize("leaves", [False, True])
@scenario
async def test_a_selection_without_an_answer_is_never_work_of_the_target(leaves):
    world = World()
    way = asyncio.create_task(select_alone(world, ms=500.0))
    await asyncio.sleep(0.1)
    assert (world.admission._speculator.requests, world.admission._target.requests) == (1, 0)
    if leaves:
        way.cancel()
    await asyncio.gather(way, return_exceptions=True)
    assert (world.admission._speculator.requests, world.admission._target.requests) == (0, 0)
