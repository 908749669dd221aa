"""Errors of a kind are learned, and the mode that is not chosen is tried now and then."""

import pytest

from router.decision.choice import Decision, Estimate, sooner
from router.decision.kinds import LATEST, MOST, TRIAL, Kinds

KIND = "windows", 14, 0, 0, 2
OTHER = "windows", 14, 0, 0, 0


def run(real, believed, prompts, kinds=None):
    """The modes of prompts of one kind, whose times are `real` and whose uncorrected forecasts are `believed`."""
    kinds, modes = kinds or Kinds(), []
    for _ in range(prompts):
        factors = kinds.corrections(KIND)
        forecast = Estimate(**{mode: factors[mode] * believed[mode] for mode in believed}, cold=believed["dense"])
        decision = kinds.tried(KIND, sooner(forecast), forecast, None)
        mode = "speculative" if decision.speculative else "dense"
        kinds.measured(KIND, mode, believed[mode], real[mode])
        modes.append(mode)
    return modes


@pytest.mark.parametrize("wrong", ["speculative", "dense"])
def test_a_wrong_forecast_of_the_mode_that_is_not_run_is_found(wrong):
    """It says four times the real time, so the other mode was chosen."""
    right = "dense" if wrong == "speculative" else "speculative"
    real = {right: 1000.0, wrong: 400.0}
    modes = run(real, {right: 1000.0, wrong: 1600.0}, 400)
    first = modes.index(wrong)
    assert TRIAL <= first <= 2 * TRIAL
    assert modes[first + 1 :].count(right) <= 400 // TRIAL


@pytest.mark.parametrize("factor", [1.0, 1.5, 4.0])
def test_trials_add_less_than_their_share(factor):
    """The forecast is right, so every trial is a loss."""
    times = {"dense": 1000.0, "speculative": 1000.0 * factor}
    modes = run(times, times, 2000)
    assert 0 < modes.count("speculative") <= 2000 / (TRIAL * factor)
    assert sum(times[mode] for mode in modes) <= (1 + 1 / TRIAL) * 2000 * 1000.0


def test_without_trials_a_wrong_forecast_stays(monkeypatch):
    """The negative control of the first test."""
    monkeypatch.setattr(Kinds, "tried", lambda self, kind, decision, estimate, before: decision)
    assert set(run({"dense": 1000.0, "speculative": 400.0}, {"dense": 1000.0, "speculative": 1600.0}, 400)) == {"dense"}


def test_of_the_prompts_that_arrive_together_one_tries():
    kinds, found = Kinds(), Estimate(1000.0, 1100.0, 1000.0)
    for _ in range(2 * TRIAL):
        kinds.measured(KIND, "dense", 1000.0, 1000.0)
    dense = Decision(False, "sooner")
    assert kinds.tried(OTHER, dense, found, None) == dense
    assert [kinds.tried(KIND, dense, found, None).reason for _ in range(3)] == ["probe", "sooner", "sooner"]


def test_a_conversation_that_began_speculative_tries_no_dense_turn():
    kinds, found, chosen = Kinds(), Estimate(1000.0, 1000.0, 1000.0), Decision(True, "sooner")
    for _ in range(2 * TRIAL):
        kinds.measured(KIND, "speculative", 1000.0, 1000.0)
    assert kinds.tried(KIND, chosen, found, "speculative") == chosen
    assert kinds.tried(KIND, chosen, found, None) == Decision(False, "probe")


def test_a_correction_needs_more_than_noise_and_follows_the_latest_times():
    kinds = Kinds()
    kinds.measured(KIND, "dense", 1000.0, 1200.0)
    assert kinds.corrections(KIND) == kinds.corrections(OTHER) == {"dense": 1.0, "speculative": 1.0}
    for _ in range(LATEST):
        kinds.measured(KIND, "dense", 1000.0, 2500.0)
    assert kinds.corrections(KIND)["dense"] == pytest.approx(2.5)
    for _ in range(LATEST):
        kinds.measured(KIND, "dense", 1000.0, 1.0)
    assert kinds.corrections(KIND)["dense"] == pytest.approx(1 / MOST)
