"""The Triton kernels of scoring: in Triton's interpreter against the torch reference, and compiled for GPUs.

The interpreter is chosen when Triton is imported, so it runs in a process of its own.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton")

from speculator_service.scoring.triton_kernels import TILING, _pooled_maxima, _row_sums, supports  # noqa: E402
from speculator_service.scoring.triton_masses import _weighted_sums  # noqa: E402

ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def told():
    command = [sys.executable, "-m", "tests.unit.speculator_service.scoring.triton_cases"]
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_equals_the_reference(told):
    assert len(told["differences"]) == 17
    assert {name: d for name, d in told["differences"].items() if not d <= 1e-5} == {}


def test_masses_equal_the_reference(told):
    assert len(told["masses"]) == 9
    assert {name: d for name, d in told["masses"].items() if not d <= 1e-5} == {}


def test_keys_after_a_row_and_a_missing_query_of_masses_would_be_seen(told):
    assert told["blind masses"] > 0.1
    assert told["missing mass"]


def test_a_worker_with_kernels_scores_as_one_without(told):
    assert told["worker keeps them"]
    assert told["worker"] <= 1e-5


def test_heads_may_lie_more_than_2_to_the_31_elements_apart(told):
    assert told["distant heads"] == 0


def test_wrong_blocks_and_a_forgotten_pool_would_be_seen(told):
    assert told["swapped"] > 0.1
    assert told["pool left out"] > 0.1


def test_a_forgotten_soft_cap_or_sink_would_be_seen(told):
    assert min(told["plain"]) > 0.1


def test_a_query_that_was_not_captured_is_never_a_score(told):
    assert told["missing"] == [[False, True, False]] * 2
    assert told["rest of missing"] <= 1e-5


def _compiled(kernel, arch, **constants):
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    pointers = {"rows": "*bf16", "cache": "*bf16", "offsets": "*i64", "blocks": "*i32", "seen": "*i32"}
    pointers |= dict.fromkeys(("partial", "sums", "table", "weights", "masses"), "*fp32")
    names = kernel.arg_names
    signature = {
        name: "constexpr" if name in constants else {**pointers, "scale2": "fp32", "cap2": "fp32"}.get(name, "i32")
        for name in names
    }
    # As a launch would find them: every pointer, stride and size a multiple of 16.
    aligned = {*pointers, "block_tokens", "size", "stride_block", "stride_head", "stride_token"}
    attrs = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in aligned}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature=signature, constexprs=values, attrs=attrs)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options={"num_warps": TILING.warps})


@pytest.mark.nightly
@pytest.mark.parametrize(("arch", "size"), [(80, 128), (90, 64)])
def test_compiles_for_gpus(arch, size, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    shape = {"ROWS": TILING.rows, "TILE": TILING.tile, "DIM": size, "CAPPED": size == 64}
    for kernel, more in ((_row_sums, {}), (_pooled_maxima, {"POOL": 13, "STEPS": 16}), (_weighted_sums, {})):
        built = _compiled(kernel, arch, **shape, **more)
        ptx = built.asm["ptx"]
        # Keys arrive in wide loads and are multiplied on the tensor cores, or it would be slow without a sign.
        assert "ld.global.v4" in ptx or "cp.async" in ptx
        assert ("wgmma.mma_async" if arch == 90 else "mma.sync") in ptx
        assert built.metadata.shared <= 160 * 1024


def test_what_the_kernels_leave_to_the_reference():
    cache = torch.zeros(4, 2, 16, 32)
    assert supports([cache[..., :16]] * 2, 13)
    assert not supports([cache], 65)
    assert not supports([cache, cache.half()], 13)
    assert not supports([cache.transpose(2, 3)], 13)
    assert not supports([cache.view(torch.int32)], 13)
    assert not supports([cache[:2], cache.flatten()[3:][: cache[:2].numel()].view_as(cache[:2])], 13)
