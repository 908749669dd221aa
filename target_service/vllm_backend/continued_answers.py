"""Answers that another replica began (`GenerateRequest.answered`), as vLLM's own resumption after preemption.

The request enters the engine with the start of the answer at the end of its prompt, so that prefix cache and KV
connectors see one prompt. When it is scheduled first, its last tokens become output tokens, as if this engine had made
them, for penalties, limits, logits processors and the grammar of structured outputs. In the front process the
detokenizer has read them too, so that the next text joins exactly.
"""

import logging
from copy import copy
from typing import Any

import torch
from vllm.logprobs import append_logprobs_for_next_position
from vllm.v1.sample.ops.topk_topp_sampler import empty_exponential_noise_like

ANSWERED = "skim_answered"
"""Key in `SamplingParams.extra_args`: how many of the prompt's last tokens are the start of the answer."""

_ANSWER = "skim_answer"
"""Key in `SamplingParams.extra_args` on the way from the scheduler to the workers: these tokens."""

_CONTEXT = 4
"""Tokens that vLLM reads to show a character that several tokens share (LogprobsProcessor._get_sampled_context_ids)."""

logger = logging.getLogger(__name__)


def _extra(request: Any, key: str, default: Any) -> Any:
    sampling = request.sampling_params
    return (sampling.extra_args or {}).get(key, default) if sampling else default


class ContinuedAnswers:
    """Scheduler mixin: the start of the answer becomes output tokens when the request is scheduled first. The V2 runner
    takes these as they are (`NewRequestData.prefill_token_ids`), the V1 runner by `continue_in_batch`.
    """

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        for new in output.scheduled_new_reqs:
            # A preempted request of the V2 runner comes as a new one again, with its output tokens.
            if (count := _extra(new, ANSWERED, 0)) and not self.requests[new.req_id].num_output_tokens:  # type: ignore[attr-defined]
                self._continue(new, count)
        return output

    def _continue(self, new: Any, count: int) -> None:
        """Split the request. new: its vllm.v1.core.sched.output.NewRequestData for the workers."""
        request = self.requests[new.req_id]  # type: ignore[attr-defined]
        tokens = list(request.all_token_ids)
        prompt, answer = tokens[:-count], tokens[-count:]
        request.prompt_token_ids, request.num_prompt_tokens = prompt, len(prompt)
        request._output_token_ids.extend(answer)
        new.prompt_token_ids, new.prefill_token_ids = prompt, tokens
        new.sampling_params.extra_args[_ANSWER] = answer
        if request.use_structured_output and not self._advance_grammar(request, answer):
            logger.error("request %s ends: its grammar refuses the start of its answer", new.req_id)
            self.grammar_compile_error_reqs.add(new.req_id)  # type: ignore[attr-defined]

    def _advance_grammar(self, request: Any, answer: list[int]) -> bool:
        """Let the request's grammar read the answer, without its reasoning. False if the grammar refuses it."""
        manager = self.structured_output_manager  # type: ignore[attr-defined]
        manager.should_fill_bitmask(request)  # finds whether the prompt itself ends the reasoning
        if not manager.should_advance(request, answer):
            return True
        content = manager.trim_reasoning_for_advance(request, answer)
        return not content or bool(request.structured_output_request.grammar.accept_tokens(request.request_id, content))


def continue_in_batch(runner: Any) -> None:
    """Make the V1 `runner` take the start of an answer as output tokens. Call it when its input batch is final. A
    seeded request goes on with the random numbers after those of these tokens; the V2 runner's follow from seed and
    position.
    """
    batch = runner.input_batch
    add = batch.add_request

    def add_request(request: Any) -> int:
        answer = _extra(request, _ANSWER, ())
        if answer and not request.output_token_ids:
            request.output_token_ids.extend(answer)
            if request.generator is not None:
                row = torch.empty(batch.vocab_size, device=request.generator.device)
                noise = empty_exponential_noise_like(row, runner.sampler.use_fp64_gumbel)
                for _ in answer:
                    noise.exponential_(generator=request.generator)
        return int(add(request))

    batch.add_request = add_request


def continue_outputs(processor: Any) -> None:
    """Make an engine's OutputProcessor treat the start of an answer as text that was sent before."""
    add = processor.add_request

    def add_request(request: Any, *args: Any, **kwargs: Any) -> None:
        count = _extra(request, ANSWERED, 0)
        if not count:
            add(request, *args, **kwargs)
            return
        first = copy(request)
        first.prompt_token_ids = request.prompt_token_ids[:-count]
        add(first, *args, **kwargs)
        state, answer = processor.request_states[request.request_id], request.prompt_token_ids[-count:]
        for token in answer:
            state.detokenizer.update([token], False)
        state.detokenizer.get_next_output_text(False, True)
        state.sent_tokens_offset = count
        if state.logprobs_processor.logprobs is not None:
            # Never sent, because DELTA outputs take only the newest entries.
            for token in answer[-_CONTEXT:]:
                append_logprobs_for_next_position(state.logprobs_processor.logprobs, [token], [0.0], [None], 1, 0)

    processor.add_request = add_request
