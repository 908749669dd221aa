"""An engine class that a user names, and the options that it gets, checked before it starts."""

import inspect
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from skim_common.errors import SkimError


def engine_class(name: str, short: Mapping[str, str], base: type, what: str) -> Any:
    """The engine class at `name`: a short name, or the class as `package.module:Class`. Imported only now.

    short: places by short name. base: the class that it must name as a base. what: for the message. Raises SkimError.
    """
    module, colon, attribute = short.get(name, name).partition(":")
    if not colon:
        raise SkimError(
            f"unknown {what} engine {name!r}: choose {', '.join(short)}, or a class as package.module:Class"
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SkimError(f"the {what} engine {name} cannot be imported: {error}") from error
    if base not in getattr(found, "__mro__", ()):
        raise SkimError(f"the {what} engine {name} is no subclass of {base.__module__}.{base.__name__}")
    return found


def check_option_names(engine: type, options: Iterable[str], name: str) -> None:
    """Raise SkimError for an option that is no keyword argument of the class `engine`. name: for the message."""
    parameters = inspect.signature(engine).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    known = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name != "tensor_parallel"]
    if unknown := sorted(set(options) - set(known)):
        raise SkimError(f"unknown {name} engine option {unknown[0]!r}: the options are {', '.join(known)}")


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
