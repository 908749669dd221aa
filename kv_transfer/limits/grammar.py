"""Refuses schemas and grammars that would end the target's process, before vLLM's backends read them.

xgrammar follows a schema by recursion, also through its references and into the patterns of its texts: with about
9,000 levels the process dies of a full stack, and one schema of 2,000 levels takes more than a minute.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import re2

from skim_common.errors import InvalidRequestError
from skim_common.nesting import MAX_DEPTH, too_deep

MAX_LEVELS = 2 * MAX_DEPTH
"""Of lists and objects in one schema: a body's, and what vLLM puts around the schemas of tools."""
MAX_REFERRED_LEVELS = 8000
"""Of all that a schema refers to, one after the other."""
MAX_GROUPS = 1000
"""Parentheses inside each other. xgrammar itself has this limit for regular expressions and grammars."""

_JSON = ("structured_outputs.json", "structured_outputs.structural_tag")
_REFERENCE = re2.compile(r'"\$ref": "((?:[^"\\]|\\.)*)"')
_STEPS = np.zeros(256, np.int8)
_STEPS[ord("(")], _STEPS[ord(")")] = 1, -1


def check_grammar(sampling: Mapping[str, Any]) -> None:
    """Raise InvalidRequestError for `structured_outputs` nested too deeply. sampling: as in GenerateRequest."""
    for name, value in (sampling.get("structured_outputs") or {}).items():
        if isinstance(value, str | dict):
            _check(f"structured_outputs.{name}", value)


def _check(name: str, value: str | dict[str, Any]) -> None:
    if name not in _JSON:
        text = str(value)
    elif isinstance(value, str) and too_deep(value.encode("utf-8", "replace"), MAX_LEVELS) is not None:
        raise InvalidRequestError(f"{name} has more than {MAX_LEVELS} levels of lists and objects; flatten it")
    else:
        text = _rewritten(value)
        levels = MAX_REFERRED_LEVELS // max(1, len(set(_REFERENCE.findall(text))))
        if too_deep(text.encode("utf-8", "replace"), min(MAX_LEVELS, levels)) is not None:
            raise InvalidRequestError(f"{name} has too many references ($ref) for its depth; write it without them")
    if text.count("(") > MAX_GROUPS:
        open_groups = np.cumsum(_STEPS[np.frombuffer(text.encode("utf-8", "replace"), np.uint8)], dtype=np.int64)
        if (open_groups - np.minimum(np.minimum.accumulate(open_groups), 0)).max() > MAX_GROUPS:
            raise InvalidRequestError(f"{name} has more than {MAX_GROUPS} parentheses inside each other; flatten it")


def _rewritten(value: str | dict[str, Any]) -> str:
    """A JSON value in one form, without escapes in its names. Text that is no JSON stays: vLLM refuses it."""
    try:
        return json.dumps(json.loads(value) if isinstance(value, str) else value)
    except ValueError:
        return str(value)
