"""Restored positions in vLLM's V1 model runner (vllm.v1.worker.gpu_model_runner.GPUModelRunner, CPU and GPU).

With M-RoPE a token has three positions, in a buffer of their own. A token of text has the same one three times, so all
three get the same offset.

Run on CPU. Not run: a GPU.
"""

from typing import Any

from vllm.utils.torch_utils import async_tensor_h2d

from kv_transfer.position_map import batch_offsets, position_map
from skim_common.models.info import position_count


def restore_positions(runner: Any) -> None:
    """Wrap `runner._model_forward`, so that the model gets original positions. Everything else in vLLM uses slots.

    When it is called, slot mapping and attention metadata have already been computed from the slots. The offsets are
    added in place, because CUDA graphs read this buffer. The slots are put back after the forward, because drafters
    compute slots from the buffer. A step without kept prompts runs as without the hook.

    Drafts beyond the end of the answer may exceed the model's positions. They get the last position, because the table
    of the rotary embedding ends there. Their tokens are never returned.
    """
    forward = runner._model_forward
    last = position_count(runner.model_config.hf_text_config) - 1

    def model_forward(*args: Any, **kwargs: Any) -> Any:
        batch = runner.input_batch
        maps = [position_map(runner.requests[id].sampling_params.extra_args) for id in batch.req_ids[: batch.num_reqs]]
        # With async scheduling and drafts, the counts on the host include drafts that may be rejected. This changes no
        # offset, because all offsets after the prompt are equal.
        offsets = batch_offsets(maps, runner.query_start_loc.np, batch.num_computed_tokens_cpu)
        if offsets is None:
            return forward(*args, **kwargs)
        buffer = runner.mrope_positions.gpu if runner.uses_mrope else runner.positions
        positions = buffer[..., : offsets.size]
        slots = positions.clone()
        positions += async_tensor_h2d(offsets, runner.device)
        # Here and not in the offsets: with asynchronous scheduling the counts on the host run ahead of the slots.
        positions.clamp_(max=last)
        try:
            return forward(*args, **kwargs)
        finally:
            positions.copy_(slots)

    runner._model_forward = model_forward
