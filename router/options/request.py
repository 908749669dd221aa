"""The request options `speculative_prefill` and `speculative_decode`, in the JSON body or in a header.

    {"speculative_prefill": {"keep_rate": 0.3, "look_ahead": 8}}      body; also `false`, `"auto"` or `"always"`
    x-skim-prefill: keep=0.3; look-ahead=8                            header; also `off`, `auto` or `always`

`true` and `on` mean `auto`. Missing fields have the deployment's defaults. A field in the body overrides the same field
in the header.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar

import annotated_types
from pydantic import BaseModel, Field, ValidationError

from kv_transfer.options import ALWAYS, AUTO, DecodeOptions, SelectionOptions
from router.options.errors import InvalidOptionError
from router.options.policies import (
    CatchUpWish,
    PolicyOptions,
    Wish,
)
from skim_common.nesting import too_deep
from skim_common.validation import problems

MAX_PROTECTED_SPANS = 4096

Span = Annotated[list[Annotated[int, Field(ge=0)]], annotated_types.Len(2, 2)]


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
    """One request option. name: its field in the body. aliases: short names for the header. words: what may stand for
    the field `enabled` besides true and false."""

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

        `model_fields_set` of the result names the fields that the request gives.
        Raises InvalidOptionError, which names the field and its allowed values.
        """
        given = self._header_fields(header) if header is not None else {}
        if body is not None:
            given |= self._body_fields(body)
        unknown = next((name for name in given if name not in self.model.model_fields), None)
        if unknown is not None:
            known = ", ".join(self.model.model_fields)
            param = f"{self.name}.{clipped(unknown)}"
            raise InvalidOptionError(f"unknown option {param}; the options are {known}", param)
        try:
            merged = self.model.model_validate({**self._that_count(defaults, given), **given})
            return self.model.model_construct(set(given), **dict(merged))
        except ValidationError as error:
            raise self._readable(error) from None

    def _that_count(self, defaults: Options, given: Mapping[str, Any]) -> dict[str, Any]:
        """The deployment's options that count here: not those that the request's own number for keep_rate replaces."""
        replaced = {"coverage", "min_keep"} if given.get("keep_rate", AUTO) != AUTO else set()
        return defaults.model_dump(exclude=replaced)

    def _body_fields(self, body: Any) -> dict[str, Any]:
        if isinstance(body, bool) or body in self.words:
            return {"enabled": body}
        if isinstance(body, Mapping):
            return dict(body)
        *allowed, last = ("an object", *self.words, "true", "false")
        raise InvalidOptionError(f"{self.name} must be {', '.join(allowed)} or {last}, not {shown(body)}", self.name)

    def _header_fields(self, header: str) -> dict[str, Any]:
        """The fields of `on; keep=0.3; look-ahead=8`. A value is JSON; a value that is not valid JSON is text."""
        switches = {"on": True, "true": True, "off": False, "false": False, **{word: word for word in self.words}}
        fields: dict[str, Any] = {}
        for part in filter(None, map(str.strip, _parts(header))):
            name, equals, value = (p.strip() for p in part.partition("="))
            if part.lower() in switches:
                fields["enabled"] = switches[part.lower()]
                continue
            if not equals:
                raise InvalidOptionError(
                    f"header {self.header}: {shown(part)} is not name=value; write for example {self.example}",
                    self.header,
                )
            name = name.lower().replace("-", "_")
            fields[self.aliases.get(name, name)] = _json_or_text(value)
        return fields

    def _readable(self, error: ValidationError) -> InvalidOptionError:
        """One sentence about the first problem: the field, what it should be, and the value that was sent."""
        first = problems(error)[0]
        if not first.location:
            return InvalidOptionError(f"{self.name}: {first.fault}", self.name)
        param = f"{self.name}.{first.name}"
        return InvalidOptionError(f"{param} {first.fault}", param)


PREFILL = Option("speculative_prefill", PrefillOptions, "keep=0.3; look-ahead=8", {"keep": "keep_rate"}, (AUTO, ALWAYS))
DECODE = Option("speculative_decode", SpeculationOptions, "max-draft-tokens=4; adaptive=false")


def read_decode(defaults: SpeculationOptions, headers: Mapping[str, str], body: Any) -> SpeculationOptions:
    """As `DECODE.resolve`, limited by the settings that the deployment's engines were started with.

    Raises InvalidOptionError for another method or for more drafts than the deployment has.
    """
    options = DECODE.resolve(defaults, headers.get(DECODE.header), body)
    if options.method not in (defaults.method, "none"):
        message = (
            f"speculative_decode.method must be {defaults.method} or none in this deployment, not {options.method}"
        )
        raise InvalidOptionError(message, "speculative_decode.method")
    if options.max_draft_tokens > defaults.max_draft_tokens:
        message = f"at most {defaults.max_draft_tokens} in this deployment, not {options.max_draft_tokens}"
        param = "speculative_decode.max_draft_tokens"
        raise InvalidOptionError(f"{param} must be {message}", param)
    return options


def _parts(header: str) -> Iterator[str]:
    """The parts of a header. A semicolon in a string of JSON parts nothing."""
    start, quoted, escaped = 0, False, False
    for at, sign in enumerate(header):
        if sign == ";" and not quoted:
            yield header[start:at]
            start = at + 1
        elif sign == '"' and not escaped:
            quoted = not quoted
        escaped = quoted and sign == "\\" and not escaped
    yield header[start:]


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value) if too_deep(value.encode()) is None else value
    except ValueError:
        return value


def shown(value: Any) -> str:
    """A value of a request, to be quoted in an error."""
    return clipped(json.dumps(value, default=str))


def clipped(text: str) -> str:
    """`text` cut to 60 characters, to be quoted in an error."""
    return text if len(text) <= 60 else text[:57] + "..."
