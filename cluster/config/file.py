"""The YAML text of a config file: its settings, the line of each setting, and its errors as one sentence."""

import types
from collections.abc import Callable, Collection, Iterator
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ValidationError

from skim_common.errors import SkimError
from skim_common.validation import Problem, problems

Location = tuple[int | str, ...]
LineOf = Callable[[Location], int | None]


def read_settings(path: Path) -> tuple[dict[str, Any], str]:
    """The settings in the YAML file, and its text. Raises SkimError, also for a setting that is given twice."""
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, yaml.SafeLoader)
        settings = yaml.safe_load(text)
    except FileNotFoundError:
        raise SkimError(f"config file {path} does not exist") from None
    except OSError as error:
        raise SkimError(f"config file {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise SkimError(f"config file {path} is not UTF-8 text") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise SkimError(f"config file {path}{where} is not valid YAML: {getattr(error, 'problem', error)}") from None
    if not isinstance(settings, dict):
        raise SkimError(f"config file {path} must hold settings such as `target:` and `speculator:`")
    seen: dict[Location, int] = {}
    for location, line in _lines(root):
        if location in seen:
            name = ".".join(map(str, location))
            raise SkimError(f"{path}: line {line}: {name}: is already set in line {seen[location]}; keep one of them")
        seen[location] = line
    return settings, text


def line_of(text: str, given_elsewhere: Collection[str] = ()) -> LineOf:
    """A function that maps a setting's path to its line in the YAML `text`, counted from 1, or to None.

    A setting that is missing from the text gets the line of the section that should contain it.
    given_elsewhere: dotted names that came from the command line; these have no line.
    """
    root = yaml.compose(text, yaml.SafeLoader) if text else None
    lines = dict(_lines(root))

    def find(location: Location) -> int | None:
        if any(".".join(map(str, location[:n])) in given_elsewhere for n in range(1, len(location) + 1)):
            return None
        return next((lines[location[:n]] for n in range(len(location), 0, -1) if location[:n] in lines), None)

    return find


def _lines(node: yaml.Node | None, location: Location = ()) -> Iterator[tuple[Location, int]]:
    """Each setting's path with its line."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*location, key.value)
            yield here, key.start_mark.line + 1
            yield from _lines(value, here)
    elif isinstance(node, yaml.SequenceNode):
        for i, item in enumerate(node.value):
            yield (*location, i), item.start_mark.line + 1
            yield from _lines(item, (*location, i))


def faults_by_line(error: ValidationError, model: type[BaseModel], line: LineOf) -> str:
    """All problems, each with its line and dotted name: `line 3: router.port: should be less than ...`."""
    return "; ".join(_in_its_line(problem, model, line(problem.location)) for problem in problems(error))


def _in_its_line(problem: Problem, model: type[BaseModel], line: int | None) -> str:
    hint = ""
    if problem.kind == "extra_forbidden":
        known = setting_names(model, problem.location[:-1])
        close = get_close_matches(str(problem.location[-1]), known, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; the settings here are {', '.join(known)}"
    where = f"line {line}: " if line else ""
    return f"{where}{problem.name}: {problem.fault}{hint}"


def setting_names(model: type[BaseModel], location: Location) -> list[str]:
    """The names of the settings in the section at `location`."""
    for name in location:
        if isinstance(name, int):  # one of several: its section is the list's
            continue
        section = section_model(model.model_fields[str(name)].annotation)
        if section is None:
            return []
        model = section
    return list(model.model_fields)


def section_model(annotation: Any) -> type[BaseModel] | None:
    """The model of a section, of an optional one, or of several; None for a plain setting."""
    choices = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType, tuple) else (annotation,)
    return next((c for c in choices if isinstance(c, type) and issubclass(c, BaseModel)), None)
