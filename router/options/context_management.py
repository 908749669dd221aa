"""The field `context_management` of a request: Anthropic's object says what leaves a chat that has grown long."""

from itertools import compress
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from router.options.errors import InvalidOptionError
from router.options.request import clipped
from skim_common.validation import problems

FIELD = "context_management"
Kind = TypeVar("Kind", bound=str)


class _Limit(BaseModel, Generic[Kind], extra="forbid", strict=True):
    type: Kind
    value: int = Field(ge=0)


class _Turns(BaseModel, extra="forbid", strict=True):
    type: Literal["thinking_turns"]
    value: int = Field(ge=1)


_Tokens = _Limit[Literal["input_tokens"]]
_Uses = _Limit[Literal["tool_uses"]]


class ClearToolUses(BaseModel, extra="forbid", strict=True):
    """Above `trigger`, the results of tools are cleared but for the last `keep` uses and `exclude_tools`; none, if that
    saves less than `clear_at_least`. clear_tool_inputs: also the arguments of these calls, or of these tools' calls."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: _Limit[Literal["input_tokens", "tool_uses"]] = _Limit(type="input_tokens", value=100_000)
    keep: _Uses = _Uses(type="tool_uses", value=3)
    clear_at_least: _Tokens | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class ClearThinking(BaseModel, extra="forbid", strict=True):
    """The thinking is cleared but for the last `keep` turns that have some; None: it stays."""

    type: Literal["clear_thinking_20251015"]
    keep: Annotated[_Turns | None, BeforeValidator(lambda keep: None if keep in ("all", {"type": "all"}) else keep)] = (
        _Turns(type="thinking_turns", value=1)
    )


Edit = Annotated[ClearToolUses | ClearThinking, Field(discriminator="type")]


_OF_UNIONS = ("clear_tool_uses_20250919", "clear_thinking_20251015", "bool", "list[str]")
_FAULTS = {
    **dict.fromkeys(("model_type", "model_attributes_type"), "must be an object"),
    **dict.fromkeys(("union_tag_invalid", "union_tag_not_found"), f"its type must be {' or '.join(_OF_UNIONS[:2])}"),
    "extra_forbidden": "is no field here; leave it out",
}
"""By pydantic's name, where its words are not for clients."""


class _ContextManagement(BaseModel, extra="forbid", strict=True):
    edits: list[Edit] = []


def read_edits(value: Any, body_bytes: int) -> tuple[Edit, ...]:
    """The edits that can change something (a body has more bytes than tokens and uses). Raises InvalidOptionError,
    which names the place."""
    try:
        edits = _ContextManagement.model_validate({} if value is None else value).edits
    except ValidationError as error:
        first = problems(error)[0]
        name = clipped(".".join([FIELD, *(str(part) for part in first.location if part not in _OF_UNIONS)]))
        raise InvalidOptionError(f"{name}: {_FAULTS.get(first.kind, first.fault)}", name) from None
    if len({edit.type for edit in edits}) < len(edits):
        raise InvalidOptionError(f"{FIELD}.edits must have each type once", f"{FIELD}.edits")
    if any(isinstance(edit, ClearThinking) for edit in edits[1:]):
        raise InvalidOptionError(f"{FIELD}.edits must have {_OF_UNIONS[1]} first", f"{FIELD}.edits")
    acts = (edit.keep if isinstance(edit, ClearThinking) else edit.trigger.value < body_bytes for edit in edits)
    return tuple(compress(edits, acts))
