"""The request option `speculative_prefill`: the same in the JSON body and in the `x-speculative-prefill` header.

    {"speculative_prefill": {"keep_rate": 0.3, "look_ahead": 8}}      body; `true` and `false` switch it on and off
    x-speculative-prefill: keep=0.3; look-ahead=8                     header; `on` and `off` likewise

Fields left out take the deployment's defaults. Where both are sent, the body wins field by field.
"""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import annotated_types
from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from kv_transfer.errors import InvalidRequestError
from kv_transfer.messages import SelectionOptions

BODY_FIELD = "speculative_prefill"
HEADER = "x-speculative-prefill"
MAX_PROTECTED_SPANS = 4096

Span = Annotated[list[Annotated[int, Field(ge=0)]], annotated_types.Len(2, 2)]


class InvalidOptionError(InvalidRequestError):
    """An option that is unknown, of the wrong type or out of range. `param` is its dotted name in the body."""

    def __init__(self, message: str, param: str) -> None:
        super().__init__(message)
        self.param = param


class RequestOptions(SelectionOptions):
    """Everything that one request may say about how its prompt is read."""

    enabled: bool = Field(True, description="false runs the prompt dense")
    min_prompt_tokens: int = Field(1024, ge=1, description="shorter prompts run dense")
    protected_spans: list[Span] = Field(
        default_factory=list,
        max_length=MAX_PROTECTED_SPANS,
        description="token ranges [start, end) that are kept whatever their score",
    )

    @property
    def selection(self) -> SelectionOptions:
        """The part that travels to the speculator."""
        return SelectionOptions(**{name: getattr(self, name) for name in SelectionOptions.model_fields})


def resolve_options(defaults: RequestOptions, header: str | None, body: Any) -> RequestOptions:
    """Defaults, overridden by the header, overridden by the body field (None where absent).

    Raises InvalidOptionError, naming the field and what it may be.
    """
    given = _header_fields(header) if header is not None else {}
    if body is not None:
        given |= _body_fields(body)
    unknown = next((name for name in given if name not in RequestOptions.model_fields), None)
    if unknown is not None:
        known = ", ".join(RequestOptions.model_fields)
        param = f"{BODY_FIELD}.{_clipped(unknown)}"
        raise InvalidOptionError(f"unknown option {param}; the options are {known}", param)
    try:
        return RequestOptions.model_validate({**defaults.model_dump(), **given})
    except ValidationError as error:
        raise _readable(error) from None


def _body_fields(body: Any) -> dict[str, Any]:
    if isinstance(body, bool):
        return {"enabled": body}
    if isinstance(body, Mapping):
        return dict(body)
    raise InvalidOptionError(f"{BODY_FIELD} must be an object, true or false, not {_shown(body)}", BODY_FIELD)


def _header_fields(header: str) -> dict[str, Any]:
    """`keep=0.3; look-ahead=8` as fields; values are read as JSON, bare words as text."""
    text = header.strip().lower()
    if text in ("on", "true", "off", "false"):
        return {"enabled": text in ("on", "true")}
    fields: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in header.split(";"))):
        name, equals, value = (p.strip() for p in part.partition("="))
        if not equals:
            raise InvalidOptionError(
                f"header {HEADER}: {_shown(part)} is not name=value; write for example keep=0.3; look-ahead=8", HEADER
            )
        name = name.lower().replace("-", "_")
        fields["keep_rate" if name == "keep" else name] = _json_or_text(value)
    return fields


def _json_or_text(value: str) -> Any:
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _readable(error: ValidationError) -> InvalidOptionError:
    """One sentence for the first thing that is wrong: the field, what was sent, what it may be."""
    first = error.errors(include_url=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    param = f"{BODY_FIELD}.{name}"
    allowed = describe_range(str(first["loc"][0]))
    return InvalidOptionError(f"{param} must be {allowed}, not {_shown(first['input'])}", param)


def describe_range(name: str) -> str:
    """What the option `name` may be, in words made from its declaration: `a number > 0 and <= 1`."""
    field = RequestOptions.model_fields[name]
    bounds = [
        f"{sign} {getattr(rule, attribute)}"
        for rule in field.metadata
        for sign, attribute in ((">", "gt"), (">=", "ge"), ("<=", "le"))
        if getattr(rule, attribute, None) is not None
    ]
    odd = " and odd" if name == "pool_kernel" else ""
    return f"{_kind(field)} {' and '.join(bounds)}{odd}".strip()


def _kind(field: FieldInfo) -> str:
    annotation = field.annotation
    simple = {bool: "true or false", int: "an integer", float: "a number", float | None: "null or a number"}
    for kind, words in simple.items():
        if annotation == kind:
            return words
    choices = getattr(annotation, "__args__", ())
    if choices and all(isinstance(c, str) for c in choices):
        return "one of " + ", ".join(choices)
    return f"a list of at most {MAX_PROTECTED_SPANS} pairs [start, end] of integers >= 0"


def _shown(value: Any) -> str:
    return _clipped(json.dumps(value, default=str))


def _clipped(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
