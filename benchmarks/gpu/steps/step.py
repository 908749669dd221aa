"""What a step is, and the environment of its process."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Step:
    """A part of the proof or of the session that runs in a process of its own.

    function: `module:name`; see `child`. limit_s: seconds after which the process is ended. code: the Python files, and
    the folders of such files, that the result depends on. alone: no other step may run meanwhile, because it measures
    times. environment: variables of the process, in addition to ENVIRONMENT.
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
