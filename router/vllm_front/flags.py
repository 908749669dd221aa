"""The flags of `vllm serve`, read by vLLM's own parser: a person's command line, and the options of a deployment.

What vLLM looks at only when a request needs it is tried here, so that a wrong option ends the start and no request. A
parser that does not fit the tokenizer would end an engine in its scheduler.
"""

import argparse
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, NoReturn

import yaml
from jinja2 import TemplateSyntaxError
from pydantic import TypeAdapter, ValidationError
from vllm import config as vllm_configs
from vllm.engine.arg_utils import _expand_json_human_readable_numbers
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.reasoning import ReasoningParserManager
from vllm.renderers import ChatParams
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.sampling_params import SamplingParams
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.import_utils import import_from_path, resolve_obj_by_qualname
from vllm.v1.sample.logits_processor import cached_load_custom_logitsprocs

from skim_common.errors import SkimError, one_line
from skim_common.validation import sentence

UNKNOWN = "unrecognized arguments: "
CONFIGS = [config for config in vars(vllm_configs).values() if hasattr(config, "__pydantic_fields__")]
"""vLLM's configs. Fields that are flags have the flags' names."""


def _refused(problem: str) -> SkimError:
    return SkimError(f"`vllm serve` does not take this: {problem}")


class _Parser(FlexibleArgumentParser):
    """vLLM's parser. A mistake is a SkimError instead of the end of the process. own: further flags to propose."""

    own: Collection[str] = ()

    def error(self, message: str) -> NoReturn:
        hint = ""
        if message.startswith(UNKNOWN):
            word = message.removeprefix(UNKNOWN).split()[0].partition("=")[0]
            close = get_close_matches(word.replace("_", "-"), [*self.own, *_flags(self)], 1)
            hint = f"; did you mean {close[0]}?" if close else ""
        raise _refused(" ".join(message.partition(" [type=")[0].split()) + hint)


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """All flags of the parser and of its sub-commands."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    commands = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return flags + [flag for choices in commands for command in choices.values() for flag in _flags(command)]


def arguments(options: Mapping[str, Any]) -> argparse.Namespace:
    """vLLM's arguments for these options, by name. Raises SkimError for an option or a value that vLLM refuses."""
    parser = make_arg_parser(_Parser())
    actions = {action.dest: action for action in parser._actions}
    words = [word for name, value in options.items() for word in _words(name, value, actions.get(name))]
    args = parser.parse_args(words)
    args.subparser = "serve"
    _check(args)
    _check_bounds(options, args)
    return args


def _check_bounds(options: Mapping[str, Any], args: argparse.Namespace) -> None:
    """The bounds of vLLM's own configs, which an engine would look at when it starts. Raises SkimError."""
    for config in CONFIGS:
        for name, field in config.__pydantic_fields__.items():
            if field.metadata and options.get(name) is not None and hasattr(args, name):
                bounded: Any = Annotated[field.annotation, *field.metadata]
                try:
                    TypeAdapter(bounded).validate_python(getattr(args, name))
                except ValidationError as error:
                    raise _refused(f"{name}: {sentence(error)}") from None


def _words(name: str, value: Any, action: argparse.Action | None) -> list[str]:
    """The words that give this option to vLLM's parser. action: the parser's; None: it has none."""
    flag = "--" + name.replace("_", "-")
    if value is None or value == []:
        return []
    if action is not None and action.nargs == 0:
        if not isinstance(value, bool):
            raise _refused(f"{name} must be true or false, not {value!r}")
        off = f"--no-{flag[2:]}"
        return [flag] if value else [off] if off in action.option_strings else []
    if isinstance(value, list | tuple) and action is not None:
        if action.nargs:
            return [flag, *(json.dumps(one) if isinstance(one, Mapping) else str(one) for one in value)]
        if isinstance(action, argparse._AppendAction):
            return [f"{flag}={one}" for one in value]
    return [f"{flag}={value if isinstance(value, str) else json.dumps(value)}"]


def given_flags(words: Sequence[str], own: Collection[str] = ()) -> tuple[dict[str, Any], list[str]]:
    """What a command line after `vllm serve` gives, `--config FILE` included: plain values by option name, and the
    names whose value is vLLM's default.

    own: flags of Skim, to propose them for an unknown one. Raises SkimError for what vLLM refuses.
    """
    root = _Parser(prog="vllm")
    root.own = own
    parser = make_arg_parser(root.add_subparsers(dest="subparser").add_parser("serve"))
    # vLLM takes its file only as a word of its own.
    parts = (word.split("=", 1) if word.startswith("--config=") else [word] for word in words)
    line = ["serve", *chain.from_iterable(parts)]
    try:
        args = root.parse_args(list(line))
    except (AssertionError, OSError, TypeError, ValueError, AttributeError, yaml.YAMLError) as error:
        raise SkimError(f"`vllm serve` does not take these flags: {one_line(error)}") from None
    _check(args)
    defaults = {action.dest: action.default for action in parser._actions}
    for action in parser._actions:
        action.default = argparse.SUPPRESS
        if callable(action.type):
            action.type = _plain(action.type)
    given = {name: value for name, value in vars(root.parse_args(list(line))).items() if name != "subparser"}
    if adapters := given.get("lora_modules"):  # vLLM's own objects
        given["lora_modules"] = [{"name": adapter.name, "path": adapter.path} for adapter in adapters]
    return given, [name for name in given if getattr(args, name) == defaults[name]]


def _check(args: argparse.Namespace) -> None:
    """What `vllm serve` checks before its engine starts, plugins and names of parsers included. Raises SkimError."""
    try:
        validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        raise _refused(one_line(error).removeprefix("Error: ")) from None
    structured = args.structured_outputs_config
    parsers = (
        (ToolParserManager, "tool", args.tool_parser_plugin, args.tool_call_parser),
        (ReasoningParserManager, "reasoning", args.reasoning_parser_plugin, args.reasoning_parser),
        (ReasoningParserManager, "reasoning", structured.reasoning_parser_plugin, structured.reasoning_parser),
    )
    for _, kind, plugin, _ in parsers:
        if plugin:
            # The managers' own methods only log an error.
            with _trying(f"{kind}_parser_plugin {plugin}", *_IMPORTED):
                import_from_path(Path(plugin).stem, plugin)
    for manager, kind, _, name in parsers:
        if name and name not in (known := manager.list_registered()):
            raise SkimError(f"vLLM has no {kind} parser {name!r}; choose one of {', '.join(known)}")
    for name in args.middleware:
        with _trying(f"middleware {name}", *_IMPORTED):
            resolve_obj_by_qualname(name)


_IMPORTED = "cannot be imported", "correct its name or the file"
_USED = "cannot be used with this model", "correct or remove it"


@contextmanager
def _trying(what: str, problem: str, hint: str) -> Iterator[None]:
    """Any error is a SkimError: it is of somebody's code."""
    try:
        yield
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {one_line(error)}"
        raise SkimError(f"{what} {problem} ({cause}); {hint}") from error


def check_late_options(args: argparse.Namespace, client: EngineClient, renderer: OnlineRenderer) -> None:
    """Raise SkimError for a parser that does not fit the model's tokenizer, a chat template that is no Jinja, and for
    sampling defaults with which no request could run. renderer: of the app's state; it has the template in use."""
    tokenizer = client.renderer.get_tokenizer()
    if name := args.tool_call_parser:
        with _trying(f"the tool parser {name!r}", *_USED):
            ToolParserManager.get_tool_parser(name)(tokenizer, None)
    if name := client.vllm_config.structured_outputs_config.reasoning_parser:
        with _trying(f"the reasoning parser {name!r}", *_USED):
            # As the engine's scheduler makes it (vllm.v1.structured_output), without arguments of a request.
            ReasoningParserManager.get_reasoning_parser(name)(tokenizer=tokenizer)
    _check_template(client, renderer)
    with _trying("the generation config (override_generation_config, too)", *_USED):
        SamplingParams(**client.model_config.get_diff_sampling_param())


def check_logits_processors(names: Sequence[str]) -> None:
    """Raise SkimError for a class that cannot be imported, or is no logits processor. The target's engine uses them."""
    for name in names:
        with _trying(f"the logits processor {name!r}", *_USED):
            cached_load_custom_logitsprocs((name,))


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
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, TemplateSyntaxError):
            cause = cause.__cause__ or cause.__context__
        if cause is not None:
            where = f"line {cause.lineno}: {cause.message}"
            raise SkimError(f"the chat template is not valid Jinja ({where}); correct chat_template") from error


def _plain(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """As `convert`, but what would be an object of vLLM is the JSON that it was made from."""

    def read(text: str) -> Any:
        value = convert(text)
        if value is None or isinstance(value, str | int | float | list | dict):
            return value
        return json.loads(_expand_json_human_readable_numbers(text))

    return read
