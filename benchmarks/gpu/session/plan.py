"""The steps of the session, in the order in which they run."""

from collections.abc import Sequence

from benchmarks.gpu.proof.plan import STEPS as PROOF
from benchmarks.gpu.steps.step import Step

_STEPS = "benchmarks.gpu.session.measurements"
_SERVICES = ("kv_transfer", "skim", "speculator_service", "target_service", "vllm_hooks")
_HERE = ("benchmarks/gpu/session/measurements.py", "benchmarks/gpu/presets.py", *_SERVICES)
_PAIR = (*_HERE, *(f"benchmarks/gpu/{name}.py" for name in ("arithmetic", "engines", "ttft", "vllm_pair")))
_HTTP = (*_HERE, "benchmarks/gpu/systems.py", "actors", "router", "cluster/serve")
_FROM_PROOF = ("decode", "layout", "hybrid")

STEPS: Sequence[Step] = (
    Step("served", "answers over HTTP", f"{_STEPS}:served", 180, (*_HTTP, "benchmarks/gpu/served.py"), alone=True),
    Step("first-token-8b", "first token, 8B and 1B", f"{_STEPS}:first_token_8b", 300, _PAIR, alone=True),
    Step("first-token-32b", "first token, 32B and 0.6B", f"{_STEPS}:first_token_32b", 200, _PAIR, alone=True),
    Step("load", "a stream beside prompts", f"{_STEPS}:load", 150, (*_HTTP, "benchmarks/load"), alone=True),
    Step("answers", "natural questions", f"{_STEPS}:answers", 240, (*_HERE, "evals"), alone=True),
    *(step for name in _FROM_PROOF for step in PROOF if step.name == name),
)
