"""`actors.watchdog`: a process that is stopped ends; one that runs does not."""

import signal
import subprocess
import sys

import psutil
import pytest

from actors.watchdog import start_watchdog

CODE = """
import sys, time
from actors.watchdog import start_watchdog
shell = start_watchdog(float(sys.argv[1]), 0.5, 0.1)
print(shell.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def watched():
    """Starts processes with a watchdog of a limit in seconds. Returns each of them, and its shell."""
    started = []

    def start(limit_s):
        command = [sys.executable, "-c", CODE, str(limit_s)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        started.append(process)
        return process, psutil.Process(int(process.stdout.readline()))

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_stopped_process_is_killed(watched):
    process, shell = watched(0.5)
    process.send_signal(signal.SIGSTOP)
    assert process.wait(timeout=60) == -signal.SIGKILL
    assert psutil.wait_procs([shell], timeout=60)[1] == []


def test_without_a_limit_a_stopped_process_stays(watched):
    """The control: nothing else kills it."""
    process, _ = watched(3600)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=3)


def test_a_process_that_runs_lives_on(watched):
    process, shell = watched(0.5)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=4)
    assert shell.is_running()


def test_a_process_that_goes_on_in_time_lives_on(watched):
    process, shell = watched(20)
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    process.send_signal(signal.SIGCONT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=1)
    assert shell.is_running()


def test_the_shell_ends_with_its_process(watched):
    process, shell = watched(3600)
    process.communicate()
    assert process.returncode == 0
    assert psutil.wait_procs([shell], timeout=60)[1] == []


def test_without_bash_the_process_has_no_watchdog(monkeypatch, caplog):
    monkeypatch.setenv("PATH", "/nowhere")
    assert start_watchdog() is None
    assert "bash cannot be started" in caplog.text


def test_a_process_whose_shell_was_killed_lives_on(watched):
    process, shell = watched(0.5)
    shell.kill()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2)
