"""The scheduler of a speculator: drafts take turns with prompts (`vllm_turns`) and wait for those that were begun with
them (`vllm_together`), requests run on (`vllm_run_on`), and scores get to the front.

The worker hangs a dict request id -> payload on `ModelRunnerOutput` under the name `SCORES`; here each payload becomes
`EngineCoreOutput.kv_transfer_params`, which vLLM delivers as `RequestOutput.kv_transfer_params`.
"""

from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput

from speculator_service.vllm_backend.scheduler.multi_step import RunOnScheduler
from speculator_service.vllm_backend.scheduler.partial_blocks import TailScheduler

SCORES = "skim_scores"


class SpeculatorScheduler(RunOnScheduler, TailScheduler):
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
