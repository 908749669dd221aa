"""What an engine's process imports, for the fork server that imports it once."""

import gc

gc.disable()

import vllm.model_executor.models.llama  # noqa: E402
import vllm.v1.engine.core  # noqa: E402
import vllm.v1.worker.cpu_worker  # noqa: E402, F401

import speculator_service.vllm_worker  # noqa: E402
import target_service.vllm_worker  # noqa: E402, F401

# Shared with every engine, as long as nothing writes to it.
gc.freeze()
gc.enable()
