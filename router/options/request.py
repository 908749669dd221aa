"""The request options `speculative_prefill` and `speculative_decode`, in the JSON body or in a header.

    {"speculative_prefill": {"keep_rate": 0.3, "look_ahead": 8}}      body; also `false`, `"auto"` or `"always"`
    x-skim-prefill: keep=0.3; look-ahead=8                            header; also `off`, `auto` or `always`

`true` and `on` mean `auto`. Missing fields have the deployment's defaults. A field in the body overrides the same field
in the header.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar, cast

import annotated_types
import re2
from pydantic import BaseModel, Field, PlainValidator, ValidationError

from kv_transfer.options import ALWAYS, AUTO, YAML_SWITCH, DecodeOptions, SelectionOptions
from router.options.errors import InvalidOptionError
from router.options.nesting import too_deep
from skim_common.validation import problems

MAX_PROTECTED_SPANS = 4096
_PARTS = re2.compile(r'(?:[^";]|"(?:[^"\\]|\\.)*"?)+')
"""The parts of a header. A semicolon in a string of JSON parts nothing."""

Span = Annotated[list[Annotated[int, Field(ge=0)]], annotated_types.Len(2, 2)]

Keep = Literal["always", "auto"] | float
"""always: kept whole. auto: selected together with the rest of the prompt. A number: the share of its own chunks."""

KEEP_VALUES = "always, auto or a number > 0 and <= 1"
SYSTEM_ROLES = ("system", "developer")
TOOL_ROLES = ("tool", "function")

Role = Literal["system", "user", "assistant", "tool"]
"""system: also the developer's messages, which are selected from only if `keep_by_role` names it."""


def read_keep(value: Any) -> Keep:
    """Raises ValueError for anything else."""
    if value in ("always", "auto"):
        return cast(Keep, value)
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value <= 1:
        return float(value)
    raise ValueError(f"must be {KEEP_VALUES}")


def read_wish(value: Any) -> Any:
    """The value of `enabled`. Raises ValueError for anything else: pydantic's own error would name a union's members.

    `true` leaves it to the router: other systems have the same field for something else, and a client of theirs must
    not force a lossy run.
    """
    if value is False or value in (AUTO, ALWAYS):
        return value
    if value is True:
        return AUTO
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

    def keep(self, role: str, tool: str | None, tokens: int, wish: Keep | None) -> Keep:
        """How much is kept of a content of a message. tool: whose result it is. tokens: of the message. wish: the
        client's for this content."""
        if wish is not None:
            return wish
        is_short = self.keep_short > 0 and tokens <= self.keep_short
        if is_short or tool in self.protect_tools:
            return "always"
        return self.keep_by_role.get(cast(Role, role), "always" if role == "system" else "auto")


class PrefillOptions(PolicyOptions):
    """The options of a request for its prefill."""

    enabled: Wish = Field(
        AUTO,
        description="always: speculative; false: dense, the target reads the whole prompt; auto or true: the mode whose"
        " first token is sooner by the router's estimate",
    )
    lossy: Literal["allow", "refuse"] = Field(
        "allow", description="refuse: a prompt that would lose tokens gets a 422 in place of an answer"
    )
    catch_up: CatchUpWish = Field(
        AUTO,
        description="after an answer from a part of the prompt, the target reads all of it in idle time, for the next"
        " turn to run dense; auto: where a later turn is likely",
    )
    min_prompt_tokens: int = Field(2000, ge=1, description="shorter prompts run dense")
    protected_spans: list[Span] = Field(
        default_factory=list,
        max_length=MAX_PROTECTED_SPANS,
        description="token ranges `[start, end)` that are always kept",
    )

    @property
    def selection(self) -> SelectionOptions:
        """The part that is sent to the speculator."""
        return SelectionOptions(**{name: getattr(self, name) for name in SelectionOptions.model_fields})


class SpeculationOptions(DecodeOptions):
    """The options of a request for speculative decoding."""

    enabled: bool = Field(True, description="false decodes without drafts")

    @property
    def decode(self) -> DecodeOptions:
        """The part that is sent to the pools."""
        given = {name: getattr(self, name) for name in DecodeOptions.model_fields}
        return DecodeOptions(**given if self.enabled else {**given, "method": "none"})


Options = TypeVar("Options", bound=BaseModel)


@dataclass(frozen=True)
class Option(Generic[Options]):
    """One request option. name: its field in the body. aliases: short names for the header. words: values of `enabled`
    that may stand for the whole, besides true and false."""

    name: str
    model: type[Options]
    example: str
    aliases: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        return "x-skim-" + self.name.removeprefix("speculative_")

    def resolve(self, defaults: Options, header: str | None, body: Any) -> Options:
        """The defaults, overridden by the header, overridden by the body field. header, body: None if absent.

        `model_fields_set` of the result names the fields that the request gives. Raises InvalidOptionError.
        """
        given = self._header_fields(header) if header is not None else {}
        if body is not None:
            given |= self._body_fields(body)
        unknown = next((name for name in given if name not in self.model.model_fields), None)
        if unknown is not None:
            known = ", ".join(self.model.model_fields)
            param = f"{self.name}.{clipped(unknown)}"
            raise InvalidOptionError(f"unknown option {param}; the options are {known}", param)
        # A request's own number for keep_rate replaces these of the deployment.
        replaced = {"coverage", "min_keep"} if given.get("keep_rate", AUTO) != AUTO else set()
        try:
            merged = self.model.model_validate({**defaults.model_dump(exclude=replaced), **given})
            return self.model.model_construct(set(given), **dict(merged))
        except ValidationError as error:
            first = problems(error)[0]
            param = f"{self.name}.{first.name}" if first.location else self.name
            raise InvalidOptionError(f"{param}{' ' if first.location else ': '}{first.fault}", param) from None

    def _body_fields(self, body: Any) -> dict[str, Any]:
        if isinstance(body, bool) or body in self.words:
            return {"enabled": body}
        if isinstance(body, Mapping):
            return dict(body)
        allowed = ", ".join(("an object", *self.words, "true"))
        raise InvalidOptionError(f"{self.name} must be {allowed} or false, not {shown(body)}", self.name)

    def _header_fields(self, header: str) -> dict[str, Any]:
        """The fields of `on; keep=0.3; look-ahead=8`. A value is JSON; a value that is not valid JSON is text."""
        switches = {"on": True, "true": True, "off": False, "false": False, **{word: word for word in self.words}}
        fields: dict[str, Any] = {}
        for part in filter(None, map(str.strip, _PARTS.findall(header))):
            name, equals, value = (p.strip() for p in part.partition("="))
            if part.lower() in switches:
                fields["enabled"] = switches[part.lower()]
            elif equals:
                name = name.lower().replace("-", "_")
                fields[self.aliases.get(name, name)] = _json_or_text(value)
            else:
                message = f"{shown(part)} is not name=value; write for example {self.example}"
                raise InvalidOptionError(f"header {self.header}: {message}", self.header)
        return fields


PREFILL = Option("speculative_prefill", PrefillOptions, "keep=0.3; look-ahead=8", {"keep": "keep_rate"}, (AUTO, ALWAYS))
DECODE = Option("speculative_decode", SpeculationOptions, "max-draft-tokens=4; adaptive=false")


def read_decode(defaults: SpeculationOptions, headers: Mapping[str, str], body: Any) -> SpeculationOptions:
    """As `DECODE.resolve`, limited by what the deployment's engines were started with."""
    options = DECODE.resolve(defaults, headers.get(DECODE.header), body)
    wrong = ""
    if options.method not in (defaults.method, "none"):
        wrong, allowed = "method", f"{defaults.method} or none"
    elif options.max_draft_tokens > defaults.max_draft_tokens:
        wrong, allowed = "max_draft_tokens", f"at most {defaults.max_draft_tokens}"
    if wrong:
        param = f"{DECODE.name}.{wrong}"
        message = f"{param} must be {allowed} in this deployment, not {getattr(options, wrong)}"
        raise InvalidOptionError(message, param)
    return options


def _json_or_text(value: str) -> Any:
    try:
        return value if too_deep(value.encode()) else json.loads(value)
    except ValueError:
        return value


def shown(value: Any) -> str:
    """A value of a request, to be quoted in an error."""
    return clipped(json.dumps(value, default=str))


def clipped(text: str) -> str:
    """`text` cut to 60 characters, to be quoted in an error."""
    return text if len(text) <= 60 else text[:57] + "..."
