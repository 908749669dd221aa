"""Drafts get their share of the time beside prompts, and prompts wait while a target of the machine owes time."""

import pytest

from speculator_service.vllm_backend.scheduler.time_slicing import LONGEST_HOLD_S, StreamHold, TimeSlices
from vllm_hooks.machine_flags import OWED, READING

PROMPT_S, DRAFTS_S = 0.06, 0.005


class Flags:
    """As MachineFlags, with another process's debt."""

    def __init__(self):
        self.owed, self.held = False, set()

    def seen(self, flag):
        return flag == OWED and self.owed

    def hold(self, flag, held):
        (self.held.add if held else self.held.discard)(flag)


@pytest.mark.parametrize("share", [0.5, 0.7, 0.9])
def test_drafts_get_their_share_beside_prompts(share):
    now = [0.0]
    slices = TimeSlices(lambda: now[0], share)
    spent = {True: 0.0, False: 0.0}
    for _ in range(5000):
        alone = slices.begin(drafts=True, prompts=True)
        took = DRAFTS_S if alone else PROMPT_S
        now[0] += took
        spent[alone] += took
    assert spent[True] / sum(spent.values()) == pytest.approx(share, abs=0.03)


def test_with_a_share_of_one_prompts_wait_for_drafts_to_end():
    now = [0.0]
    slices = TimeSlices(lambda: now[0], 1.0)
    turns = []
    for step in range(200):
        turns.append(slices.begin(drafts=step != 150, prompts=True))
        now[0] += PROMPT_S
    assert [step for step, alone in enumerate(turns) if not alone] == [0, 150]


def test_time_without_prompts_gives_drafts_nothing():
    now = [0.0]
    slices = TimeSlices(lambda: now[0])
    slices.begin(drafts=False, prompts=False)
    now[0] = 60.0
    assert not slices.begin(drafts=True, prompts=True)


def test_prompts_wait_while_time_is_owed_and_the_engine_says_that_it_reads():
    now, flags = [0.0], Flags()
    hold = StreamHold(flags, lambda: now[0])
    assert not hold.begin(prompts=True)
    assert flags.held == {READING}
    flags.owed = True
    assert hold.begin(prompts=True)
    assert flags.held == set()
    assert not hold.begin(prompts=False), "nothing waits"
    assert hold.begin(prompts=True)
    flags.owed = False
    assert not hold.begin(prompts=True)
    assert not hold.begin(prompts=False)
    assert flags.held == set()


def test_they_wait_for_a_bounded_time():
    now, flags = [0.0], Flags()
    hold, flags.owed = StreamHold(flags, lambda: now[0]), True
    read = []
    while now[0] < 10:
        if not hold.begin(prompts=True):
            read.append(now[0])
        now[0] += 0.01
    assert len(read) == pytest.approx(10 / LONGEST_HOLD_S, abs=1)
