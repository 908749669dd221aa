"""Lets a process on Linux use AMX, the matrix unit of newer x86 processors.

Linux gives a process AMX only when it asks for it (arch_prctl(2), ARCH_REQ_XCOMP_PERM); an AMX instruction before that
ends the process with SIGILL. oneDNN asks at its first large matrix product. vLLM's CPU attention does not ask, so an
engine whose first step has one token dies there: the decoding half of a split target, which gets its KV blocks from
the other half.
"""

import ctypes
import platform

_ARCH_PRCTL = 158
_GET_PERMISSION, _REQUEST_PERMISSION = 0x1022, 0x1023
_TILE_DATA = 18


def request_amx() -> bool:
    """Ask for AMX on behalf of this process. Returns whether the process may use it; False where there is none."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return False
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _REQUEST_PERMISSION, _TILE_DATA)
    return may_use_amx()


def may_use_amx() -> bool:
    """Whether this process on x86-64 Linux has asked for AMX and got it."""
    allowed = ctypes.c_uint64(0)
    ctypes.CDLL(None).syscall(_ARCH_PRCTL, _GET_PERMISSION, ctypes.byref(allowed))
    return bool(allowed.value >> _TILE_DATA & 1)
