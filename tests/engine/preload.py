"""The imports of an engine's process. The fork server imports them once."""

import gc
from importlib import import_module

gc.disable()
for name in (
    "speculator_service.vllm_backend.worker",
    "target_service.vllm_backend.worker",
    "vllm.model_executor.models.llama",
    "vllm.v1.engine.core",
    "vllm.v1.worker.cpu_worker",
):
    import_module(name)

# All engines share this memory as long as nothing writes to it.
gc.freeze()
gc.enable()
