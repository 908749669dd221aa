"""The prompt of a sample as the models see it."""

import json
from typing import Any

from evals.tasks.quiz import Message
from evals.tasks.registry import Sample
from router.decision.choice import Decision, decide
from router.options.request import PrefillOptions
from router.prompt.rendered import RenderedPrompt
from skim.prompts import render as render_prompt
from skim_common.errors import SkimError


def render(sample: Sample, tokenizer: Any, options: PrefillOptions) -> RenderedPrompt:
    """Tokenize the sample with the chat template, as the router does.

    Raises SkimError if the router would run the prompt dense, because there would be nothing to select.
    """
    prompt = render_prompt(template_messages(sample.messages), tokenizer, options)
    decision = decision_of(prompt, options)
    if not decision.speculative:
        raise SkimError(
            f"a {sample.task} prompt of {prompt.size} tokens would run dense ({decision.reason}): "
            "ask for longer --lengths"
        )
    return prompt


def decision_of(prompt: RenderedPrompt, options: PrefillOptions) -> Decision:
    """Whether serving would compress this prompt for a request with these options."""
    return decide(options, prompt.size, prompt.spans(options))


def template_messages(messages: list[Message]) -> list[Message]:
    """The messages as chat templates want them: the arguments of a tool call as an object, as vLLM gives them."""
    return [_with_parsed_arguments(message) for message in messages]


def _with_parsed_arguments(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    functions = [call["function"] for call in message["tool_calls"]]
    parsed = [{**function, "arguments": json.loads(function["arguments"])} for function in functions]
    calls = [{**call, "function": function} for call, function in zip(message["tool_calls"], parsed, strict=True)]
    return {**message, "tool_calls": calls}
