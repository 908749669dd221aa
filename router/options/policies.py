"""How much of each content of a chat is kept: the client's wishes for its parts, and the policies by role and tool."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator

from kv_transfer.options import ALWAYS, AUTO, YAML_SWITCH, SelectionOptions

Keep = Literal["always", "auto"] | float
"""always: kept whole. auto: selected together with the rest of the prompt. A number: the share of its own chunks."""

KEEP_VALUES = "always, auto or a number > 0 and <= 1"
SYSTEM_ROLES = ("system", "developer")
TOOL_ROLES = ("tool", "function")

Role = Literal["system", "user", "assistant", "tool"]
"""system: also the developer's messages, which are selected from only if `keep_by_role` names it."""


def read_keep(value: Any) -> Keep:
    """The value of a field as `Keep`. Raises ValueError for anything else."""
    if value in ("always", "auto"):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise ValueError(f"must be {KEEP_VALUES}")


def read_wish(value: Any) -> Any:
    """The value of `enabled`. Raises ValueError for anything else.

    `true` leaves it to the router: other systems have the same field for something else, and a client of theirs must
    not force a lossy run.
    """
    # An error of pydantic's own union would name the members of the union, not the field alone.
    if value is True:
        return AUTO
    if value is False or value in (AUTO, ALWAYS):
        return value
    raise ValueError("must be auto, always, true or false")


Wish = Annotated[Literal["auto", "always", False], PlainValidator(read_wish)]
"""always: speculative, past the guard. False: dense. auto: the router chooses."""

KeepField = Annotated[Keep, PlainValidator(read_keep)]

OFF: Literal["off"] = "off"

CatchUpWish = Annotated[Literal["auto", "off", "always"], YAML_SWITCH]
"""auto: where a later turn is likely. always: after every prompt that lost tokens. off: never."""


class PolicyOptions(SelectionOptions):
    """The options of the selection that the router carries out, and those that cross the wire."""

    keep_by_role: dict[Role, KeepField] = Field(
        default_factory=dict,
        fail_fast=True,
        description='of a chat: how much is kept of the contents of a role, such as `{"tool": 0.3}`',
    )
    protect_tools: list[str] = Field(
        default_factory=list, max_length=1024, description="results of the tools with these names are always kept"
    )
    keep_short: int = Field(
        64, ge=0, description="of a chat: a message of at most this many tokens is kept whole; 0 switches this off"
    )

    def keep(self, role: str, tool: str | None, tokens: int, asked: Keep | None) -> Keep:
        """How much is kept of a content. The first rule that applies decides.

        role: of its message. tool: the name of the tool whose result it is. tokens: of
        its whole message. asked: the client's wish for this content.
        """
        if asked is not None:
            return asked
        is_short = self.keep_short > 0 and tokens <= self.keep_short
        if is_short or tool in self.protect_tools:
            return "always"
        return self.keep_by_role.get(role, "always" if role == "system" else "auto")  # type: ignore[call-overload]
