"""What both pools need to start vLLM's processes: their share of the cores, and word of why they did not start.

vLLM starts an engine in processes of its own and reports their failure as "see root cause above": the cause is only
in their log. `register` (a `vllm.general_plugins` entry point, called in each of those processes) adds a log handler
that notes the exceptions in a file. It does nothing unless an engine of Skim's is starting.
"""

import json
import logging
import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from kv_transfer.environment import CORES, KEPT_HEAP, unless_set, with_environment
from kv_transfer.errors import SkimError

START_UP_FILE = "SKIM_START_UP_FILE"
"""Environment variable with the file that exceptions are noted in; set while an engine starts, and only then."""


@contextmanager
def start_up_environment(cpu_ranks: int) -> Iterator[str]:
    """The environment that vLLM's processes start with, put back afterwards; yields the file they note errors in.

    cpu_ranks: tensor-parallel ranks on CPU, 0 or 1 where cores need no sharing. Raises SkimError for too few cores.
    """
    with tempfile.NamedTemporaryFile(prefix="skim-start-", suffix=".jsonl") as notes:
        added = {START_UP_FILE: notes.name}
        if cpu_ranks > 1 and CORES not in os.environ:
            # By itself vLLM gives each rank a NUMA node and refuses machines that have too few.
            added[CORES] = _core_shares(cpu_ranks)
        with with_environment(added):
            yield notes.name


@contextmanager
def cpu_processes(config: Any) -> Iterator[None]:
    """How the processes of an engine start on CPU, while it starts in this context; nothing changes elsewhere.

    With enforce_eager nothing at all is compiled. vLLM's small helpers otherwise are (`torch.compile` in
    vllm.model_executor.layers.vocab_parallel_embedding and vllm.v1.sample.ops.logprobs), by each rank at its first
    request: half a minute for four ranks on two cores.

    A single rank runs inside the engine core, as on a GPU: a process and a message in each step less. vLLM's CPU
    platform gives it a process of its own only because OpenMP's environment must be set before it starts; it is, here.
    The two would poll for each other for a second after each message, on cores that the model needs (SpinCondition in
    vllm.distributed.device_communicators.shm_broadcast).

    They keep the memory that they free (KEPT_HEAP), unless the environment has said otherwise.

    config: vllm.config.VllmConfig, whose executor is set.
    """
    if config.device_config.device_type != "cpu":
        yield
        return
    with ExitStack() as stack:
        stack.enter_context(with_environment(unless_set(KEPT_HEAP)))
        if config.model_config.enforce_eager:
            stack.enter_context(with_environment({"TORCH_COMPILE_DISABLE": "1"}))
        if config.parallel_config.world_size == 1:
            from vllm.utils.ompmultiprocessing import OMPProcessManager

            config.parallel_config.distributed_executor_backend = "uni"
            stack.enter_context(OMPProcessManager(config).configure_omp_envs(rank=0, local_rank=0))
        yield


def _core_shares(ranks: int) -> str:
    """This process's cores in `ranks` equal shares."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < ranks:
        raise SkimError(f"tensor_parallel {ranks} needs as many CPU cores, and this machine gives {len(cores)}")
    share = len(cores) // ranks
    return "|".join(",".join(map(str, cores[rank * share : (rank + 1) * share])) for rank in range(ranks))


def first_exception(path: str) -> tuple[str, str] | None:
    """Type name and message of the first exception noted: later ones are its consequences in other processes."""
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    if not lines:
        return None
    kind, message = json.loads(lines[0])
    return kind, message


class _NoteExceptions(logging.Handler):
    """Appends [type, message] of each logged exception to a file, a JSON line each."""

    def __init__(self, path: str) -> None:
        super().__init__(logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        # The file is gone once the engine has started.
        if record.exc_info and record.exc_info[1] and os.path.exists(self._path):
            error = record.exc_info[1]
            with open(self._path, "a", encoding="utf-8") as notes:
                notes.write(json.dumps([type(error).__name__, str(error)]) + "\n")


def register() -> None:
    """Note this process's start-up exceptions if it belongs to an engine of Skim's that is starting."""
    if path := os.environ.get(START_UP_FILE):
        logging.getLogger("vllm").addHandler(_NoteExceptions(path))
