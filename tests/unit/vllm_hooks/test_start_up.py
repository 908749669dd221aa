"""Where a rank on CPU runs and on which cores, with vLLM's own manager of OpenMP's environment, and its memory."""

import logging
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError

from skim_common.environment import CORES, KEPT_HEAP
from skim_common.errors import ModelError
from vllm_hooks.start_up import _NoteExceptions, cpu_processes, first_exception, start_up_environment


@pytest.fixture(autouse=True)
def chosen_core(monkeypatch):
    monkeypatch.setenv(CORES, "0")
    for name in ("OMP_NUM_THREADS", "OMP_PLACES", "LD_PRELOAD"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cpu_build():
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("vLLM's CPU build alone binds threads")


def config(ranks, device="cpu", *, eager=False):
    parallel = SimpleNamespace(
        world_size=ranks,
        local_world_size=ranks,
        data_parallel_rank_local=None,
        _api_process_count=1,
        distributed_executor_backend="mp",
    )
    device_config = SimpleNamespace(device_type=device)
    return SimpleNamespace(
        parallel_config=parallel,
        device_config=device_config,
        kv_transfer_config=None,
        model_config=SimpleNamespace(enforce_eager=eager),
    )


@pytest.mark.usefixtures("cpu_build")
def test_a_single_rank_runs_in_the_engine_core_on_the_cores_that_were_given():
    one = config(1)
    with cpu_processes(one):
        assert (os.environ["OMP_PLACES"], os.environ["OMP_NUM_THREADS"]) == ("{0}", "1")
    assert one.parallel_config.distributed_executor_backend == "uni"
    assert "OMP_PLACES" not in os.environ


@pytest.mark.parametrize("other", [config(2), config(1, "cuda")])
def test_other_engines_are_left_as_they_are(other):
    with cpu_processes(other):
        assert "OMP_PLACES" not in os.environ
    assert other.parallel_config.distributed_executor_backend == "mp"


@pytest.mark.usefixtures("cpu_build")
@pytest.mark.parametrize(
    ("ranks", "device", "eager", "compiles"),
    [(1, "cpu", True, False), (2, "cpu", True, False), (2, "cpu", False, True), (1, "cuda", True, True)],
)
def test_eager_engines_on_cpu_compile_nothing(monkeypatch, ranks, device, eager, compiles):
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "0")
    with cpu_processes(config(ranks, device, eager=eager)):
        assert os.environ["TORCH_COMPILE_DISABLE"] == ("0" if compiles else "1")
    assert os.environ["TORCH_COMPILE_DISABLE"] == "0"


BLOCKS = """
import ctypes, resource
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
def use(mebibytes):
    block = ctypes.c_void_p(libc.malloc(ctypes.c_size_t(mebibytes << 20)))
    libc.memset(block, 1, ctypes.c_size_t(mebibytes << 20))
    libc.free(block)
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
use(100)
before = faults()
for mebibytes in (40, 100, 60, 80):
    use(mebibytes)
print(faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library has variables of its own")
@pytest.mark.parametrize(
    ("told", "device", "kept"),
    [({}, "cpu", True), ({}, "cuda", False), ({"MALLOC_MMAP_MAX_": "65536"}, "cpu", False)],
    ids=["an engine on CPU", "on a GPU", "told otherwise"],
)
@pytest.mark.usefixtures("cpu_build")
def test_memory_that_an_engine_on_cpu_frees_is_used_again_without_a_page_fault(monkeypatch, told, device, kept):
    for name in KEPT_HEAP:
        monkeypatch.delenv(name, raising=False)
    for name, value in told.items():
        monkeypatch.setenv(name, value)
    with cpu_processes(config(1, device)):
        process = subprocess.run([sys.executable, "-c", BLOCKS], capture_output=True, text=True, check=True)
    assert (int(process.stdout) < 1000) is kept, process.stdout


@pytest.mark.parametrize(("said", "found"), [(None, "0"), ("1", "1")])
def test_an_engine_starts_where_there_is_no_cuda_compiler(monkeypatch, said, found):
    """vLLM's default sampler would compile FlashInfer's kernels at the start."""
    monkeypatch.delenv("VLLM_USE_FLASHINFER_SAMPLER", raising=False)
    if said:
        monkeypatch.setenv("VLLM_USE_FLASHINFER_SAMPLER", said)
    with start_up_environment(0):
        assert os.environ["VLLM_USE_FLASHINFER_SAMPLER"] == found
    assert os.environ.get("VLLM_USE_FLASHINFER_SAMPLER") == said


def test_without_vllm_the_modules_that_every_process_loads_can_be_imported():
    blocked = "import sys; sys.modules['vllm'] = None\n"
    subprocess.run([sys.executable, "-c", blocked + "import vllm_hooks.start_up"], check=True)
    control = subprocess.run(
        [sys.executable, "-c", blocked + "import vllm_hooks.engine"], capture_output=True, text=True
    )
    assert "ModuleNotFoundError" in control.stderr


def test_the_cause_of_a_rank_on_another_node_is_noted(tmp_path):
    """Ray raises a RayTaskError, whose text is a traceback, in the engine core."""
    notes = tmp_path / "notes.jsonl"
    notes.touch()
    logger = logging.getLogger("tests.start_up")
    logger.addHandler(_NoteExceptions(str(notes)))
    try:
        raise RayTaskError("initialize_worker", "Traceback ...", ModelError("no such layer"))
    except RayTaskError:
        logger.exception("EngineCore failed to start.")
    assert first_exception(str(notes)) == ("ModelError", "no such layer")
