"""The processes of an engine: their environment while it starts, the errors that they report, and their end.

vLLM reports a failure of its processes as "see root cause above", and the cause is only in their log. It calls
`register` (a `vllm.general_plugins` entry point) in each of them; this module imports no vLLM.
"""

import ctypes
import faulthandler
import json
import logging
import multiprocessing
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from skim_common.environment import CORES, KEPT_HEAP, unless_set, with_environment
from skim_common.errors import SkimError

NO_COMPILER_NEEDED = {"VLLM_USE_FLASHINFER_SAMPLER": "0"}
"""vLLM samples with FlashInfer by default, which compiles its kernels at the first start and needs nvcc for it."""

START_UP_FILE = "SKIM_START_UP_FILE"
"""Environment variable with the path of the file for exceptions. It is set only while an engine starts."""

STACKS_SIGNAL = signal.SIGUSR2
"""Makes a process of an engine write the stacks of its threads. Neither vLLM 0.29 nor Ray 2.60 uses it."""

PR_SET_PDEATHSIG = 1


def register() -> None:
    """Write this process's exceptions to START_UP_FILE, end it with its parent, and let it show its stacks, if Skim is
    starting an engine."""
    if path := os.environ.get(START_UP_FILE):
        end_with_parent()
        show_stacks_when_asked()
        logging.getLogger("vllm").addHandler(_NoteExceptions(path))


def end_with_parent() -> None:
    """End this process without delay as soon as its parent ends. Only a child of `multiprocessing` has such a parent.

    vLLM's engine core does not notice that its parent was killed: it would keep its memory, and the replica that takes
    its place could not start. The kernel ends it, also when it is stopped. To the kernel, the parent is the *thread*
    that started this process, which must live as long as the engine. A process that vLLM forks inherits its plugins and
    does not call this; on CPU and in Ray actors vLLM spawns its processes.
    """
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not parent.is_alive():  # it ended before
        os._exit(1)


def show_stacks_when_asked() -> None:
    """At STACKS_SIGNAL, write the stacks of all threads to standard error, also while a C function runs, and go on."""
    faulthandler.register(STACKS_SIGNAL, file=2)


class _NoteExceptions(logging.Handler):
    """Appends each logged exception to a file, as one JSON line [type, message]."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        # The file is removed when the engine has started.
        if record.exc_info and record.exc_info[1] and os.path.exists(self._path):
            # Ray wraps the exception of a rank on another node, with its traceback in the text (RayTaskError.cause).
            error = getattr(record.exc_info[1], "cause", None) or record.exc_info[1]
            with open(self._path, "a", encoding="utf-8") as notes:
                notes.write(json.dumps([type(error).__name__, str(error)]) + "\n")


def first_exception(path: str) -> tuple[str, str] | None:
    """Type name and message of the first exception in the file. Later ones are its consequences in other processes."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    if not lines:
        return None
    kind, message = json.loads(lines[0])
    return kind, message


@contextmanager
def start_up_environment(cpu_ranks: int) -> Iterator[str]:
    """Set the environment that vLLM's processes start with, and restore it afterwards. Yields the file for exceptions.
    cpu_ranks: that share the cores of this machine; 0 on a GPU. Raises SkimError for too few cores."""
    with tempfile.NamedTemporaryFile(prefix="skim-start-", suffix=".jsonl") as notes:
        added = {START_UP_FILE: notes.name, **unless_set(NO_COMPILER_NEEDED)}
        if cpu_ranks > 1 and CORES not in os.environ:
            # By default vLLM gives each rank a NUMA node of its own and refuses machines with too few nodes.
            added[CORES] = _core_shares(cpu_ranks)
        with with_environment(added):
            yield notes.name


def _core_shares(ranks: int) -> str:
    """The cores of this process, divided into `ranks` equal shares."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        raise SkimError(f"tensor_parallel {ranks} needs as many CPU cores, and this machine gives {len(cores)}")
    share = len(cores) // ranks
    return "|".join(",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks))


@contextmanager
def cpu_processes(config: Any) -> Iterator[None]:
    """Settings for an engine that starts on CPU in this context; `config`, a VllmConfig, gets another executor. On
    other devices nothing changes. Variables that the environment has already stay."""
    if config.device_config.device_type != "cpu":
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(with_environment(unless_set(KEPT_HEAP)))
        if config.model_config.enforce_eager:
            # vLLM still compiles small functions (vllm.v1.sample.ops.logprobs, for example), each rank at its first
            # request: half a minute for four ranks on two cores.
            stack.enter_context(with_environment({"TORCH_COMPILE_DISABLE": "1"}))
        if config.parallel_config.world_size == 1:
            # A single rank runs inside the engine core, as on a GPU. vLLM starts a process for it only because OpenMP's
            # environment must be set first, and two processes poll for messages on cores that the model needs.
            from vllm.utils.ompmultiprocessing import OMPProcessManager

            config.parallel_config.distributed_executor_backend = "uni"
            stack.enter_context(OMPProcessManager(config).configure_omp_envs(rank=0, local_rank=0))
        yield
