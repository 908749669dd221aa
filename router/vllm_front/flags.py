"""The flags of `vllm serve`, read by vLLM's own parser: a person's command line, and the options of a deployment."""

import argparse
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, NoReturn

import yaml
from pydantic import TypeAdapter, ValidationError
from vllm.config import (
    CacheConfig,
    LoadConfig,
    LoRAConfig,
    ModelConfig,
    MultiModalConfig,
    ObservabilityConfig,
    ParallelConfig,
    PrefetchOffloadConfig,
    SchedulerConfig,
    UVAOffloadConfig,
)
from vllm.engine.arg_utils import _expand_json_human_readable_numbers
from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.utils.import_utils import import_from_path, resolve_obj_by_qualname

from skim_common.errors import SkimError, one_line
from skim_common.validation import sentence

UNKNOWN = "unrecognized arguments: "
CONFIGS: tuple[Any, ...] = (
    CacheConfig, LoadConfig, LoRAConfig, ModelConfig, MultiModalConfig, ObservabilityConfig, ParallelConfig,
    PrefetchOffloadConfig, SchedulerConfig, UVAOffloadConfig,
)  # fmt: skip
"""vLLM's configs whose fields are flags of the same names."""


class _Parser(FlexibleArgumentParser):
    """vLLM's parser. A mistake is a SkimError instead of the end of the process. own: further flags to propose."""

    own: Collection[str] = ()

    def error(self, message: str) -> NoReturn:
        hint = ""
        if message.startswith(UNKNOWN):
            word = message.removeprefix(UNKNOWN).split()[0].partition("=")[0]
            close = get_close_matches(word.replace("_", "-"), [*self.own, *_flags(self)], 1)
            hint = f"; did you mean {close[0]}?" if close else ""
        told = " ".join(message.partition(" [type=")[0].split())
        raise SkimError(f"`vllm serve` does not take this: {told}{hint}")


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    """All flags of the parser and of its sub-commands."""
    return [flag for one in (parser, *_commands(parser)) for action in one._actions for flag in action.option_strings]


def _commands(parser: argparse.ArgumentParser) -> list[argparse.ArgumentParser]:
    subparsers = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [command for action in subparsers for command in action.choices.values()]


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
            if field.metadata and options.get(name) is not None:
                bounded: Any = Annotated[field.annotation, *field.metadata]
                try:
                    TypeAdapter(bounded).validate_python(getattr(args, name))
                except ValidationError as error:
                    raise SkimError(f"`vllm serve` does not take this: {name}: {sentence(error)}") from None


def _words(name: str, value: Any, action: argparse.Action | None) -> list[str]:
    """The words that give this option to vLLM's parser. action: the parser's; None: it has none."""
    flag = "--" + name.replace("_", "-")
    if value is None or value == []:
        return []
    if action is not None and action.nargs == 0:
        if not isinstance(value, bool):
            raise SkimError(f"`vllm serve` does not take this: {name} must be true or false, not {value!r}")
        off = f"--no-{flag[2:]}"
        return [flag] if value else [off] if off in action.option_strings else []
    if isinstance(value, list | tuple) and action is not None:
        if action.nargs:
            return [flag, *(json.dumps(one) if isinstance(one, Mapping) else str(one) for one in value)]
        if isinstance(action, argparse._AppendAction):
            return [f"{flag}={one}" for one in value]
    return [f"{flag}={value if isinstance(value, str) else json.dumps(value)}"]


def given_flags(words: Sequence[str], own: Collection[str] = ()) -> tuple[dict[str, Any], frozenset[str]]:
    """What a command line after `vllm serve` gives: plain values by option name, and the names whose value is vLLM's
    default.

    The parser reads `--config FILE` and its abbreviations, too. own: flags of Skim, to propose them for an unknown one.
    Raises SkimError for what vLLM refuses.
    """
    root = _Parser(prog="vllm")
    root.own = own
    parser = make_arg_parser(root.add_subparsers(dest="subparser").add_parser("serve"))
    # vLLM takes its file only as a word of its own.
    line = ["serve", *(part for word in words for part in _config_apart(word))]
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
    return given, frozenset(name for name in given if getattr(args, name) == defaults[name])


def _config_apart(word: str) -> list[str]:
    return word.split("=", 1) if word.startswith("--config=") else [word]


def _check(args: argparse.Namespace) -> None:
    """What `vllm serve` checks before its engine starts, plugins and names of parsers included. Raises SkimError."""
    try:
        validate_parsed_serve_args(args)
    except (TypeError, ValueError) as error:
        raise SkimError(f"`vllm serve` does not take this: {one_line(error).removeprefix('Error: ')}") from None
    structured = args.structured_outputs_config
    for manager, kind, plugins, names in (
        (ToolParserManager, "tool", [args.tool_parser_plugin], [args.tool_call_parser]),
        (
            ReasoningParserManager,
            "reasoning",
            [args.reasoning_parser_plugin, structured.reasoning_parser_plugin],
            [args.reasoning_parser, structured.reasoning_parser],
        ),
    ):
        for plugin in filter(None, plugins):
            # The managers' own methods only log an error.
            with _imported(f"{kind}_parser_plugin {plugin}"):
                import_from_path(Path(plugin).stem, plugin)
        for name in filter(None, names):
            if name not in (known := manager.list_registered()):
                raise SkimError(f"vLLM has no {kind} parser {name!r}; choose one of {', '.join(known)}")
    for name in args.middleware:
        with _imported(f"middleware {name}"):
            resolve_obj_by_qualname(name)


@contextmanager
def _imported(what: str) -> Iterator[None]:
    """What the import of somebody's code raises is a SkimError."""
    try:
        yield
    except (Exception, SystemExit) as error:
        cause = f"{type(error).__name__}: {one_line(error)}"
        raise SkimError(f"{what} cannot be imported ({cause}); correct its name or the file") from None


def _plain(convert: Callable[[str], Any]) -> Callable[[str], Any]:
    """As `convert`, but what would be an object of vLLM is the JSON that it was made from."""

    def read(text: str) -> Any:
        value = convert(text)
        if value is None or isinstance(value, str | int | float | list | dict):
            return value
        return json.loads(_expand_json_human_readable_numbers(text))

    return read
