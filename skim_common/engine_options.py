"""An engine that a user names, with options that are checked before it starts."""

import inspect
import json
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from skim_common.errors import SkimError


def named_engine(
    kind: str, short: Mapping[str, str], base: type, model: str, tensor_parallel: int, options: Mapping[str, Any]
) -> Any:
    """Start the engine `kind`: a short name, or a class as `package.module:Class`. Its module is imported only now.

    short: places by short name. base: the class that it must name as a base. options: keyword arguments of the class.
    Raises SkimError for an unknown kind or option, and what the class raises.
    """
    what = base.__name__.removesuffix("Engine").lower()
    module, colon, attribute = short.get(kind, kind).partition(":")
    if not colon:
        raise SkimError(
            f"unknown {what} engine {kind!r}: choose {', '.join(short)}, or a class as package.module:Class"
        )
    try:
        engine = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SkimError(f"the {what} engine {kind} cannot be imported: {error}") from error
    if base not in getattr(engine, "__mro__", ()):
        raise SkimError(f"the {what} engine {kind} is no subclass of {base.__module__}.{base.__name__}")
    parameters = inspect.signature(engine).parameters.values()
    names = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "tensor_parallel"]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    if not takes_any and (unknown := sorted(set(options) - set(names))):
        raise SkimError(f"unknown {kind} {what} engine option {unknown[0]!r}: the options are {', '.join(names)}")
    return engine(model, tensor_parallel=tensor_parallel, **options)


def read_adapter(module: Any) -> Any:
    """An entry of `lora_modules` as a mapping with name and path; vLLM also takes `name=path`, and JSON text.

    What is none of these stays as it is.
    """
    module = from_json(module)
    if isinstance(module, str) and "=" in module:
        name, _, path = module.partition("=")
        return {"name": name, "path": path}
    return module


def from_json(value: Any) -> Any:
    """What a JSON text of an object or a list says; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            return json.loads(value)
    return value
