"""The steps of the proof, the most valuable first."""

from collections.abc import Sequence

from benchmarks.gpu.steps.step import Step

_HERE = "benchmarks/gpu/proof"
_MODULES = "benchmarks.gpu.proof"
ORACLES = tuple(f"tests/reference/{name}_oracle.py" for name in ("generation", "sampling", "scoring"))
"""What the engines are compared with. The wheel has no tests, so the proof runs in a checkout."""
_SHARED = (*ORACLES, *(f"{_HERE}/{name}.py" for name in ("engines", "models")), "benchmarks/gpu/steps/checks.py")
_SCORING = (f"{_HERE}/kernels.py", "benchmarks/gpu/scoring.py", "benchmarks/gpu/clock.py", "speculator_service/scoring")
_SPECULATOR = (f"{_HERE}/speculator.py", *_SHARED, "kv_transfer", "speculator_service", "vllm_hooks")
_TARGET = (f"{_HERE}/target.py", *_SHARED, "kv_transfer", "target_service", "vllm_hooks")
_DRAFTS = (f"{_HERE}/drafts.py", *_TARGET)
_HYBRID = (f"{_HERE}/hybrid.py", f"{_HERE}/drafts.py", *_SPECULATOR, *_TARGET)
_MEASURED = tuple(
    f"benchmarks/gpu/{name}.py" for name in ("arithmetic", "decode", "engines", "presets", "ttft", "vllm_pair")
)
_SERVICES = ("kv_transfer", "skim", "speculator_service", "target_service", "vllm_hooks")
_PAIR = (f"{_HERE}/headline.py", *_SHARED, *_MEASURED, *_SERVICES)


STEPS: Sequence[Step] = (
    Step("imports", "vLLM and its kernels load", f"{_MODULES}.imports:imports", 120, (f"{_HERE}/imports.py",)),
    Step("kernels", "the scoring kernels are right", f"{_MODULES}.kernels:kernels", 300, _SCORING),
    Step("speculator-wide", "scores and drafts, 8 layers, D = 128", f"{_MODULES}.speculator:wide", 240, _SPECULATOR),
    Step("drafts", "verified drafts, greedy", f"{_MODULES}.drafts:greedy", 300, _DRAFTS),
    Step("target-64", "restored positions, D = 64", f"{_MODULES}.target:narrow", 300, _TARGET),
    Step("sampling", "verified drafts, sampled", f"{_MODULES}.drafts:sampled", 240, _DRAFTS),
    Step("scoring", "the scoring kernels at real sizes", f"{_MODULES}.kernels:scoring", 120, _SCORING, alone=True),
    Step("decode", "decoding speed", f"{_MODULES}.headline:decode", 420, _PAIR, alone=True),
    Step("target-128", "restored positions, D = 128", f"{_MODULES}.target:wide", 300, _TARGET),
    Step("speculator-demo", "scores and drafts, D = 64", f"{_MODULES}.speculator:demo", 240, _SPECULATOR),
    Step("last-position", "drafts at the last position", f"{_MODULES}.target:last_position", 180, _TARGET),
    Step("hybrid", "linear attention in both roles", f"{_MODULES}.hybrid:hybrid", 300, _HYBRID),
    Step("layout", "drafting by KV cache layout", f"{_MODULES}.headline:layout", 240, _PAIR, alone=True),
)
