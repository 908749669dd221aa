"""The code of an answer runs in a process of its own, which reaches nothing outside it."""

import os

import pytest

from evals.agents.execute import code_of, passes, run

RIGHT = "def double(x):\n    return 2 * x\n"
TESTS = "assert double(4) == 8"


def test_code_passes_its_tests_or_fails():
    assert passes(RIGHT, TESTS)
    assert not passes(RIGHT.replace("2 *", "3 *"), TESTS)
    assert not passes("def double(x) return", TESTS)


@pytest.mark.parametrize(
    "code",
    [
        "import sys\nsys.exit(0)",
        "import os\nos._exit(0)",
        "print('passed')\nraise SystemExit",
        "while True:\n    pass",
        "x = 'a' * 2**33",
    ],
)
def test_what_ends_early_or_never_does_not_pass(code):
    """The tests would pass if they ran."""
    assert not passes(f"{RIGHT}\n{code}", TESTS, cpu_seconds=2)


@pytest.mark.parametrize(
    "code",
    [
        "import socket\nsocket.create_connection(('127.0.0.1', 1))",
        "import socket\nsocket.socket().bind(('127.0.0.1', 0))",
        "import subprocess\nsubprocess.run(['true'])",
        "import os\nos.system('true')",
        "import os\nos.fork()",
        "import ctypes\nctypes.CDLL(None)",
        "open('file', 'w')",
        "import os\nos.mkdir('folder')",
        "import os\nos.kill(os.getpid(), 0)",
    ],
)
def test_network_processes_and_files_are_refused(code):
    """The same code with the exception caught passes: it is this statement that is refused."""
    assert not passes(f"{RIGHT}\n{code}", TESTS)
    indented = code.replace("\n", "\n    ")
    assert passes(f"{RIGHT}\ntry:\n    {indented}\nexcept PermissionError:\n    pass", TESTS)


def test_the_process_has_no_environment(monkeypatch):
    monkeypatch.setenv("SKIM_TEST_SECRET", "1")
    found = run("import os", "value = [dict(os.environ), os.listdir()]")
    assert found is not None
    assert "SKIM_TEST_SECRET" in os.environ
    assert not [name for name in found["value"][0] if name.startswith("SKIM")]
    assert found["value"][1] == []


def test_the_code_of_an_answer():
    assert code_of(f"Here it is:\n```python\n{RIGHT}```\nDone.") == RIGHT
    assert code_of(f"```\n{RIGHT}") == RIGHT
    assert code_of(RIGHT) == RIGHT
