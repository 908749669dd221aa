"""A deployment from a YAML file, from command-line flags, or from a file with flags over it.

Every error is one sentence that names the setting, such as `target.tensor_parallel`, and its line in the file.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cluster.config.file import faults_by_line, line_of, read_settings
from cluster.config.schema import DeploymentConfig
from cluster.config.show import HIDDEN
from skim_common.errors import SkimError
from skim_common.models.source import located, public_name


def load_config(path: str | Path) -> DeploymentConfig:
    """The deployment in the YAML file at `path`. Raises SkimError."""
    return config_from_flags(path, {})


def config_from_flags(path: str | Path | None, overrides: Mapping[str, Any]) -> DeploymentConfig:
    """The deployment in the file at `path` (if given), with `overrides` in place of the file's values.

    overrides: values by dotted name, such as {"target.model": Path("big")}; None keeps the file's value. A Path is
    a model: a hub name, or a folder, which starts at the working directory if it is relative. Raises SkimError.
    """
    settings, text = read_settings(Path(path)) if path is not None else ({}, "")
    for name, value in overrides.items():
        if value is not None:
            _set(settings, name.split("."), located(str(value), Path.cwd()) if isinstance(value, Path) else value)
    if hidden := _hidden(settings):
        raise SkimError(f"{path}: {hidden}: is hidden by `skim config show`; write the secret itself, or leave it out")
    folder = Path(path).parent if path is not None else Path()
    try:
        config = DeploymentConfig.model_validate(settings, context={"folder": folder.absolute()})
    except ValidationError as error:
        lines = line_of(text, given_elsewhere={name for name, value in overrides.items() if value is not None})
        raise SkimError(f"{path or 'command line'}: {faults_by_line(error, DeploymentConfig, lines)}") from None
    return _named(config)


def config_from_settings(settings: Mapping[str, Any]) -> DeploymentConfig:
    """The deployment in `settings`; its model folders must be absolute, or hub names. Raises SkimError."""
    try:
        return _named(DeploymentConfig.model_validate(dict(settings)))
    except ValidationError as error:
        raise SkimError(f"deployment settings: {faults_by_line(error, DeploymentConfig, line_of(''))}") from None


def _named(config: DeploymentConfig) -> DeploymentConfig:
    if config.served_model_name:
        return config
    return config.model_copy(update={"served_model_name": public_name(config.target.model)})


def _hidden(value: Any, name: str = "") -> str | None:
    """The dotted name of a setting whose value `skim config show` has replaced."""
    if isinstance(value, dict):
        return next(filter(None, (_hidden(one, f"{name}.{key}".lstrip(".")) for key, one in value.items())), None)
    return name if value == HIDDEN else None


def _set(settings: dict[str, Any], names: list[str], value: Any) -> None:
    """Set settings[a][b] = value and add missing sections. Validation reports a section of a wrong type."""
    *sections, last = names
    for section in sections:
        settings = settings.setdefault(section, {})
        if not isinstance(settings, dict):
            return
    settings[last] = value
