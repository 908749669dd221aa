"""AMX in a process of its own: the permission is for the whole process, and stays."""

import subprocess
import sys
from pathlib import Path

import pytest

from vllm_hooks.amx import request_amx

CPUINFO = Path("/proc/cpuinfo")


@pytest.mark.skipif(not CPUINFO.exists() or "amx_tile" not in CPUINFO.read_text(), reason="this processor has no AMX")
def test_a_process_that_asks_may_use_amx_and_another_may_not():
    code = "from vllm_hooks.amx import *; print(may_use_amx()); print(request_amx(), may_use_amx())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["False", "True", "True"]


def test_other_systems_have_none(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert request_amx() is False
