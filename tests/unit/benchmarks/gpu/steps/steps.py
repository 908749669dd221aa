"""Steps that pass, fail and die, for the tests of the runner."""

import os
import signal
import subprocess
import sys
import time


def passes(settings, checks):
    checks.judge("equal", True, 3, "things are equal")
    checks.skip("graphs", f"there are none on {settings.device}")
    with open(os.environ["PROOF_RUNS"], "a") as runs:
        runs.write("passes\n")


async def only_skips(settings, checks):
    checks.skip("all", "nothing has a meaning here")


def fails(settings, checks):
    checks.judge("first", False, 0.25, "is too small")
    checks.judge("second", True, 1, "is right")


def raises(settings, checks):
    checks.judge("first", True, 1, "is right")
    with checks.part("second"):
        raise ValueError("two\nlines")
    checks.judge("third", True, 1, "is right")
    raise RuntimeError("no engine")


def dies(settings, checks):
    checks.judge("first", True, 1, "is right")
    print("the last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def meets(settings, checks):
    """Ends when another process runs this step, too."""
    with open(os.environ["PROOF_RUNS"], "a+") as runs:
        runs.write("met\n")
        runs.flush()
        while runs.seek(0) or runs.read().count("met") < 2:
            time.sleep(0.02)
    checks.judge("met", True, 2, "steps ran at once")


def says_nothing(settings, checks):
    pass


def hangs(settings, checks):
    """With a process of its own, as an engine has."""
    checks.judge("first", True, 1, "is right")
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with open(os.environ["PROOF_RUNS"], "a") as runs:
        runs.write(f"{os.getpid()} {engine.pid}\n")
    time.sleep(600)


def leaves_processes(settings, checks):
    """Ends, and leaves two processes behind: one of another session, and one that lost its parent and its name."""
    sleep = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'engine', 0, 0, 0); time.sleep(600)"
    server = subprocess.Popen([sys.executable, "-c", sleep], start_new_session=True, env={})
    orphan = subprocess.run(
        ["sh", "-c", f'setsid "$0" -c "{sleep}" >/dev/null 2>&1 & echo $!', sys.executable], stdout=subprocess.PIPE
    )
    with open(os.environ["PROOF_RUNS"], "a") as runs:
        runs.write(f"{server.pid} {int(orphan.stdout)}\n")
    checks.judge("left", True, 2, "processes are left")
