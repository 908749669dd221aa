"""A deployment from a YAML file, from command-line flags, or from a file with flags over it; and shown as YAML.

Every error is one sentence that names the setting and its line in the file.
"""

import re  # noqa: TID251  names of settings
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from cluster.config.schema import DeploymentConfig
from skim_common.errors import SkimError
from skim_common.models.source import located, public_name
from skim_common.validation import SECRETS, Problem, problems

Location = tuple[int | str, ...]
Lines = dict[Location, int | None]

HIDDEN = "***"
"""What `as_yaml` writes in the place of a secret. A file with it is refused."""
COMMENT_COLUMN = 40
_SECRET_VARIABLE = re.compile("TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


def load_config(path: str | Path) -> DeploymentConfig:
    """The deployment in the YAML file at `path`. Raises SkimError."""
    return config_from_flags(path, {})


def config_from_flags(path: str | Path | None, overrides: Mapping[str, Any]) -> DeploymentConfig:
    """The deployment in the file at `path` (if given), with `overrides` in place of the file's values.

    overrides: values by dotted name, such as {"target.model": Path("big")}; None keeps the file's value. A Path is
    a model: a hub name, or a folder, which starts at the working directory if it is relative. Raises SkimError.
    """
    settings, lines = read_settings(Path(path)) if path is not None else (dict[str, Any](), Lines())
    for name, value in overrides.items():
        if value is not None:
            names = tuple(name.split("."))
            _set(settings, names, located(str(value), Path.cwd()) if isinstance(value, Path) else value)
            lines = {location: line for location, line in lines.items() if location[: len(names)] != names}
            lines[names] = None
    if hidden := _hidden(settings):
        raise SkimError(f"{path}: {hidden}: is hidden by `skim config show`; write the secret itself, or leave it out")
    folder = Path(path).parent if path is not None else Path()
    return config_from_settings(settings, str(path or "command line"), lines, folder.absolute())


def config_from_settings(
    settings: Mapping[str, Any], source: str = "deployment settings", lines: Lines | None = None, folder: Path = Path()
) -> DeploymentConfig:
    """The deployment in `settings`. Raises SkimError with all problems: `line 3: router.port: should be less than ...`.

    source: what they come from, for the error. lines: of the settings. folder: where their relative paths start.
    """
    try:
        config = DeploymentConfig.model_validate(dict(settings), context={"folder": folder})
    except ValidationError as error:
        faults = "; ".join(_sentence(problem, lines or {}) for problem in problems(error))
        raise SkimError(f"{source}: {faults}") from None
    if config.served_model_name:
        return config
    return config.model_copy(update={"served_model_name": public_name(config.target.model)})


def read_settings(path: Path) -> tuple[dict[str, Any], Lines]:
    """The settings in the YAML file, and the line of each. Raises SkimError, also for a setting that is given twice."""
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
    lines = Lines()
    for location, line in _lines(root):
        if location in lines:
            name = ".".join(map(str, location))
            raise SkimError(f"{path}: line {line}: {name}: is already set in line {lines[location]}; keep one of them")
        lines[location] = line
    return settings, lines


def _lines(node: yaml.Node | None, location: Location = ()) -> Iterator[tuple[Location, int]]:
    entries: list[tuple[Any, yaml.Node, yaml.Node]] = []  # name, where it stands, value
    if isinstance(node, yaml.MappingNode):
        entries = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        entries = [(number, item, item) for number, item in enumerate(node.value)]
    for name, key, value in entries:
        yield (*location, name), key.start_mark.line + 1
        yield from _lines(value, (*location, name))


def _set(settings: dict[str, Any], names: Sequence[str], value: Any) -> None:
    """Set settings[a][b] = value and add missing sections. Validation reports a section of a wrong type."""
    *sections, last = names
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            return
    settings[last] = value


def _hidden(value: Any, name: str = "") -> str | None:
    """The dotted name of a setting whose value is HIDDEN."""
    if isinstance(value, dict):
        return next(filter(None, (_hidden(one, f"{name}.{key}".lstrip(".")) for key, one in value.items())), None)
    return name if value == HIDDEN else None


def _sentence(problem: Problem, lines: Lines) -> str:
    """A setting that is missing has the line of the section that should contain it."""
    hint = ""
    if problem.kind == "extra_forbidden":
        model: type[BaseModel] = DeploymentConfig
        for name in problem.location[:-1]:
            annotation = model.model_fields[str(name)].annotation
            kinds = (annotation, *get_args(annotation))  # optional, or one of several
            model = next(kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel))
        close = get_close_matches(str(problem.location[-1]), model.model_fields, 1)
        hint = f"; did you mean {close[0]}?" if close else f"; the settings here are {', '.join(model.model_fields)}"
    sections = (problem.location[:n] for n in range(len(problem.location), 0, -1))
    line = next((lines[section] for section in sections if section in lines), None)
    return f"{f'line {line}: ' if line else ''}{problem.name}: {problem.fault}{hint}"


class _OneLine(yaml.SafeDumper):
    """Quotes every text, so that none is taken for a number or broken over lines."""


_OneLine.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def as_yaml(config: BaseModel) -> str:
    """`config` with every default and the meaning of each setting. It loads again to an equal one without secrets."""
    return "\n".join(_shown(config, _without_secrets(config.model_dump(mode="json")), "")) + "\n"


def _without_secrets(value: Any, name: str = "", section: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(one, str(key), name) for key, one in value.items()}
    secret = name in SECRETS or (section == "env" and _SECRET_VARIABLE.search(name))
    return HIDDEN if secret and value else value


def _shown(section: BaseModel, values: dict[str, Any], indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value, line, comment = getattr(section, name), f"{indent}{name}:", field.description
        if isinstance(value, BaseModel):
            comment = (type(value).__doc__ or "").splitlines()[0]
        else:
            form: Any = {"default_flow_style": True, "width": float("inf"), "allow_unicode": True}
            line += f" {yaml.dump(values[name], Dumper=_OneLine, **form).splitlines()[0]}"
        yield f"{line:<{COMMENT_COLUMN}}  # {comment}" if comment else line
        if isinstance(value, BaseModel):
            yield from _shown(value, values[name], indent + "  ")
