"""A whole config as YAML: every default filled in, what each setting means beside it, and no secrets."""

import re  # noqa: TID251  names of settings
from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

from skim_common.validation import SECRETS

COMMENT_COLUMN = 40
HIDDEN = "***"
"""In the place of a secret. `cluster.config.load` refuses it."""

_SECRET_VARIABLE = re.compile("TOKEN|KEY|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)


class _OneLine(yaml.SafeDumper):
    """Quotes every text, so that none is taken for a number or broken over lines."""


_OneLine.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def as_yaml(config: BaseModel) -> str:
    """`config` as YAML that loads again to an equal one, if it has no secrets."""
    return "\n".join(_lines(config, _without_secrets(config.model_dump(mode="json")), "")) + "\n"


def _without_secrets(value: Any, name: str = "", section: str = "") -> Any:
    if isinstance(value, dict):
        return {key: _without_secrets(one, str(key), name) for key, one in value.items()}
    secret = name in SECRETS or (section == "env" and _SECRET_VARIABLE.search(name))
    return HIDDEN if secret and value else value


def _lines(section: BaseModel, values: dict[str, Any], indent: str) -> Iterator[str]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield _commented(f"{indent}{name}:", (type(value).__doc__ or "").splitlines()[0])
            yield from _lines(value, values[name], indent + "  ")
        else:
            yield _commented(f"{indent}{name}: {_on_one_line(values[name])}", field.description)


def _on_one_line(value: Any) -> str:
    text: str = yaml.dump(value, Dumper=_OneLine, default_flow_style=True, width=float("inf"), allow_unicode=True)
    return text.splitlines()[0]


def _commented(line: str, comment: str | None) -> str:
    return f"{line:<{COMMENT_COLUMN}}  # {comment}" if comment else line
