"""A whole config as YAML: every default filled in, what each setting means beside it."""

from collections.abc import Iterator
from typing import Any

import yaml
from pydantic import BaseModel

COMMENT_COLUMN = 40


class _OneLine(yaml.SafeDumper):
    """Quotes every text, so that none is taken for a number or broken over lines."""


_OneLine.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def as_yaml(config: BaseModel) -> str:
    """`config` as YAML that loads again to an equal one."""
    return "\n".join(_lines(config, config.model_dump(mode="json"), "")) + "\n"


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
