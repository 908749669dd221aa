"""An engine that a user names, with options that are checked before it starts."""

import inspect
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any

from skim_common.errors import SkimError


def named_engine(
    kind: str, short: Mapping[str, str], base: type, model: str, tensor_parallel: int, options: Mapping[str, Any]
) -> Any:
    """Start the engine `kind`: one of the short names, or a class as `package.module:Class`, imported only now.

    base: which it must be a subclass of. options: keyword arguments of the class. Raises SkimError for an unknown kind
    or option, and what the class raises.
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
    """An entry of `lora_modules` as a mapping with name and path: also of `name=path`, and of JSON text (vLLM's
    `LoRAModulePath`). What is none of these stays as it is."""
    module = from_json(module)
    if isinstance(module, str) and "=" in module:
        name, _, path = module.partition("=")
        return {"name": name, "path": path}
    return module


def adapter_paths(modules: Iterable[Any]) -> dict[str, str]:
    """The folders and hub names of the adapters of `lora_modules`, by name. Raises SkimError for an entry that is none,
    and for a name that occurs twice."""
    paths: dict[str, str] = {}
    for module in modules:
        read = read_adapter(module)
        name, path = (read.get("name"), read.get("path")) if isinstance(read, Mapping) else ("", "")
        if not (isinstance(name, str) and isinstance(path, str) and name and path):
            raise SkimError(f"lora_modules: {module!r} is no adapter; write name=path")
        if name in paths:
            raise SkimError(f"lora_modules has two adapters with the name {name!r}; rename one")
        paths[name] = path
    return paths


def from_json(value: Any) -> Any:
    """What a JSON text of an object or a list says; any other value as it is."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        with suppress(ValueError):
            return json.loads(value)
    return value
