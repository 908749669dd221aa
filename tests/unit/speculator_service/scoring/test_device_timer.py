"""The timer of scoring. CUDA events are replaced by fakes that know when the device has finished."""

import pytest
import torch

from speculator_service.scoring import device_timer
from speculator_service.scoring.device_timer import DeviceTimer


@pytest.fixture
def stream(monkeypatch):
    """A list of recorded events. An event is done once `stream.clear()` was called, as after a copy to the host."""
    recorded = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            recorded.append(self)

        def elapsed_time(self, end):
            assert not recorded, "the device has not finished"
            return 7.0

        def synchronize(self):
            pytest.fail("the timer waits for the device")

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *args: pytest.fail("the timer waits for the device"))
    return recorded


def test_cuda_is_timed_by_events_and_without_waiting(stream):
    timer = DeviceTimer(torch.device("cuda"))
    assert len(stream) == 1
    timer.stop()
    assert len(stream) == 2
    stream.clear()
    assert timer.milliseconds() == 7.0


@pytest.mark.usefixtures("stream")
def test_a_cpu_is_timed_by_the_clock(monkeypatch):
    now = iter([10.0, 10.25])
    monkeypatch.setattr(device_timer.time, "perf_counter", lambda: next(now))
    timer = DeviceTimer(torch.device("cpu"))
    timer.stop()
    assert timer.milliseconds() == 250.0
