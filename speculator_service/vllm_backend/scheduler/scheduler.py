"""The speculator's scheduler with all its mixins. It also returns the scores to the engine's front process.

Drafts and prompts share time (`time_slicing`). Drafting rounds that are sent together run together (`gang`). A request
decodes several tokens in one engine step (`multi_step`). The tokens of a question
are computed although they are cached, if their queries are needed (`question_rows`).

The worker sets the attribute `SCORES` of `ModelRunnerOutput`, a dict request id -> payload. The scheduler copies each
payload to `EngineCoreOutput.kv_transfer_params`, and vLLM delivers it as `RequestOutput.kv_transfer_params`.
"""

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput

from speculator_service.vllm_backend.scheduler.multi_step import MultiStepScheduler
from speculator_service.vllm_backend.scheduler.question_rows import QuestionRowScheduler
from vllm_hooks.block_hash import PositionHashing

SCORES = "skim_scores"


class SpeculatorScheduler(PositionHashing, MultiStepScheduler, QuestionRowScheduler):
    """Not async: with several tokens per step, scheduling ahead would gain little."""

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
