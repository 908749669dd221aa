"""The speculator's scheduler, put together from its mixins, and the way of the scores to the front.

Drafts and prompts share time (`time_slicing`), drafting rounds that begin together run together (`gang`), a request
decodes several tokens in one engine step (`multi_step`), and unfilled blocks are cached too (`partial_blocks`).

The worker hangs a dict request id -> payload on `ModelRunnerOutput` under the name `SCORES`; here each payload becomes
`EngineCoreOutput.kv_transfer_params`, which vLLM delivers as `RequestOutput.kv_transfer_params`.
"""

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput

from speculator_service.vllm_backend.scheduler.multi_step import MultiStepScheduler
from speculator_service.vllm_backend.scheduler.partial_blocks import PartialBlockScheduler
from vllm_hooks.block_hash import PositionHashing

SCORES = "skim_scores"


class SpeculatorScheduler(PositionHashing, MultiStepScheduler, PartialBlockScheduler):
    """Schedules a step after the last one's tokens are known: with several tokens a step, ahead would gain little."""

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if scores := getattr(model_runner_output, SCORES, None):
            for client in outputs.values():
                for output in client.outputs:
                    if output.request_id in scores:
                        output.kv_transfer_params = scores[output.request_id]
        return outputs
