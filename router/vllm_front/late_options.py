"""Tries what vLLM looks at only when a request needs it, so that a wrong option ends the start and no request.

What the target's engine shares is among it: a parser that does not fit the tokenizer ends an engine in its scheduler.
"""

import argparse
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from jinja2 import TemplateSyntaxError
from vllm.engine.protocol import EngineClient
from vllm.reasoning import ReasoningParserManager
from vllm.renderers import ChatParams
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.sampling_params import SamplingParams
from vllm.tool_parsers import ToolParserManager
from vllm.v1.sample.logits_processor import cached_load_custom_logitsprocs

from skim_common.errors import SkimError, one_line


def check_late_options(args: argparse.Namespace, client: EngineClient, renderer: OnlineRenderer) -> None:
    """Raise SkimError for a parser that does not fit the model's tokenizer, a chat template that is no Jinja, and for
    sampling defaults with which no request could run.

    renderer: of the app's state; it has the template in use.
    """
    tokenizer = client.renderer.get_tokenizer()
    config = client.vllm_config
    if name := args.tool_call_parser:
        _tried(f"tool parser {name!r}", lambda: ToolParserManager.get_tool_parser(name)(tokenizer, None))
    if reasoning := config.structured_outputs_config.reasoning_parser:
        # As the engine's scheduler makes it (vllm.v1.structured_output), without arguments of a request.
        parser = ReasoningParserManager.get_reasoning_parser
        _tried(f"reasoning parser {reasoning!r}", lambda: parser(reasoning)(tokenizer=tokenizer))
    _check_template(client, renderer)
    defaults = client.model_config.get_diff_sampling_param()
    _tried("generation config (override_generation_config, too)", lambda: SamplingParams(**defaults))


def check_logits_processors(names: Sequence[str]) -> None:
    """Raise SkimError for a class that cannot be imported, or is no logits processor. The target's engine uses them."""
    for name in names:
        _tried(f"logits processor {name!r}", partial(cached_load_custom_logitsprocs, (name,)))


def _tried(what: str, use: Callable[[], Any]) -> None:
    try:
        use()
    except Exception as error:  # of any type: the code of parsers and of plugins
        cause = f"{type(error).__name__}: {one_line(error)}"
        raise SkimError(f"the {what} cannot be used with this model ({cause}); correct or remove it") from error


def _check_template(client: EngineClient, renderer: OnlineRenderer) -> None:
    """A template may refuse a message, as each chat would be told. One that cannot be compiled refuses all."""
    params = ChatParams(
        chat_template=renderer.chat_template,
        chat_template_content_format=renderer.chat_template_content_format,
        chat_template_kwargs=renderer.default_chat_template_kwargs or {},
    )
    try:
        client.renderer.render_chat([[{"role": "user", "content": "Hello"}]], params)
    except Exception as error:
        if wrong := next((e for e in _causes(error) if isinstance(e, TemplateSyntaxError)), None):
            where = f"line {wrong.lineno}: {wrong.message}"
            raise SkimError(f"the chat template is not valid Jinja ({where}); correct chat_template") from error


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
