"""The steps of the proof, the most valuable first."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]
_HERE = "benchmarks/gpu/proof"
ORACLES = tuple(f"tests/reference/{name}_oracle.py" for name in ("generation", "sampling", "scoring"))
"""What the engines are compared with. The wheel has no tests, so the proof runs in a checkout."""
_SHARED = (*ORACLES, *(f"{_HERE}/{name}.py" for name in ("checks", "engines", "models")))
_SCORING = (f"{_HERE}/kernels.py", "benchmarks/gpu/scoring.py", "benchmarks/gpu/clock.py", "speculator_service/scoring")
_SPECULATOR = (f"{_HERE}/speculator.py", *_SHARED, "kv_transfer", "speculator_service", "vllm_hooks")
_TARGET = (f"{_HERE}/target.py", *_SHARED, "kv_transfer", "target_service", "vllm_hooks")
_DRAFTS = (f"{_HERE}/drafts.py", *_TARGET)
_HYBRID = (f"{_HERE}/hybrid.py", f"{_HERE}/drafts.py", *_SPECULATOR, *_TARGET)
_MEASURED = tuple(f"benchmarks/gpu/{name}.py" for name in ("decode", "engines", "presets", "ttft", "vllm_pair"))
_SERVICES = ("cluster/in_process", "kv_transfer", "speculator_service", "target_service", "vllm_hooks")
_PAIR = (f"{_HERE}/headline.py", *_SHARED, *_MEASURED, *_SERVICES)


@dataclass(frozen=True)
class Step:
    """A part of the proof that runs in a process of its own.

    function: `module:name`, in this package unless the module has dots; see `child`. limit_s: seconds after which the
    process is ended. code: the Python files, and the folders of such files, that the result depends on. alone: no
    other step may run meanwhile, because it measures times. environment: variables of the process, in addition to
    ENVIRONMENT.
    """

    name: str
    shows: str
    function: str
    limit_s: float
    code: tuple[str, ...]
    alone: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def digest(self, *circumstances: object) -> str:
        """A digest of the step, its code and `circumstances`: a result with the same digest need not be repeated."""
        hashed = hashlib.sha256(repr((self, circumstances)).encode())
        for path in (ROOT / name for name in self.code):
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                hashed.update(file.relative_to(ROOT).as_posix().encode())
                hashed.update(file.read_bytes())
        return hashed.hexdigest()[:16]


ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "PYTHONUNBUFFERED": "1",
    # Functions are sent to the workers, to read what they run and to break hooks in the controls.
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # vLLM samples with FlashInfer by default. Its import fails where it is not installed.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # The oracle computes on CPU before an engine starts. A forked engine process would wait for its OpenMP threads for
    # ever; the step `sampling` did so on an H200.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    # Triton's attention in float32 would use TF32 products, and comparisons in float32 would fail.
    "TRITON_F32_DEFAULT": "ieee",
}

STEPS: Sequence[Step] = (
    Step("imports", "vLLM and its kernels load", "imports:imports", 120, (f"{_HERE}/imports.py",)),
    Step("kernels", "the scoring kernels are right", "kernels:kernels", 300, _SCORING),
    Step("speculator-wide", "scores and drafts, 8 layers, D = 128", "speculator:wide", 240, _SPECULATOR),
    Step("drafts", "verified drafts, greedy", "drafts:greedy", 300, _DRAFTS),
    Step("target-64", "restored positions, D = 64", "target:narrow", 300, _TARGET),
    Step("sampling", "verified drafts, sampled", "drafts:sampled", 240, _DRAFTS),
    Step("scoring", "the scoring kernels at real sizes", "kernels:scoring", 120, _SCORING, alone=True),
    Step("ttft", "time to first token", "headline:ttft", 420, _PAIR, alone=True),
    Step("decode", "decoding speed", "headline:decode", 420, _PAIR, alone=True),
    Step("target-128", "restored positions, D = 128", "target:wide", 300, _TARGET),
    Step("speculator-demo", "scores and drafts, D = 64", "speculator:demo", 240, _SPECULATOR),
    Step("last-position", "drafts at the last position", "target:last_position", 180, _TARGET),
    Step("hybrid", "linear attention in both roles", "hybrid:hybrid", 300, _HYBRID),
    Step("layout", "drafting by KV cache layout", "headline:layout", 240, _PAIR, alone=True),
)
