"""AMX in a process of its own: the permission is for the whole process, and stays."""

import subprocess
import sys
from pathlib import Path

import pytest

CPUINFO = Path("/proc/cpuinfo")

CODE = """
import ctypes
from vllm_hooks.worker import request_amx

def may_use_amx():
    allowed = ctypes.c_uint64(0)
    ctypes.CDLL(None).syscall(158, 0x1022, ctypes.byref(allowed))
    return bool(allowed.value >> 18 & 1)

before = may_use_amx()
request_amx()
print(before, may_use_amx())
"""


@pytest.mark.skipif(not CPUINFO.exists() or "amx_tile" not in CPUINFO.read_text(), reason="this processor has no AMX")
def test_a_process_that_asks_may_use_amx_and_another_may_not():
    ran = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "False True"
