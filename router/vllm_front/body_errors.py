"""Bounds what a wrong body costs, and tells what is wrong with it in one short sentence.

pydantic collects an error for every wrong element of a list or an object, once for each branch of a union, and vLLM
tells them all with the values: for 100,000 token ids and one -1 that are 38 MB. Here each list and each object stops at
its first wrong element.
"""

import sys
from collections.abc import Iterable
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic_core import SchemaValidator, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from vllm.entrypoints.serve.exception_handling.handlers.validation import clean_loc_for_param
from vllm.entrypoints.serve.exception_handling.utils import sanitize_message
from vllm.exceptions import VLLMValidationError

from router.options.errors import HttpError
from router.options.request import clipped

MAX_ERRORS = 8
"""Errors in one sentence. A union has one or more for each of its branches."""
MAX_ERROR_CHARS = 400
"""Of one error's text. Some quote what the client sent."""
MAX_MESSAGE_CHARS = 1000
"""Of a sentence of vLLM's, which may quote a whole field, such as the model's name."""

_MANY = frozenset({"list", "tuple", "set", "frozenset", "dict"})
_VALUES = frozenset({"default", "metadata", "serialization"})
"""Names in a schema that hold no schema of what is read."""


def bound_body_errors(app: FastAPI) -> None:
    """Let every endpoint of `app` stop at a list's first wrong element, and answer with `answer_invalid`."""
    for route in app.routes:
        for field in route.dependant.body_params if isinstance(route, APIRoute) else ():
            adapter = field._type_adapter
            # A prebuilt validator of a nested model would still collect all errors.
            adapter.validator = SchemaValidator(fail_fast(adapter.core_schema), _use_prebuilt=False)
    for kind in (RequestValidationError, ValidationError):  # the latter where vLLM reads a part only when it uses it
        app.exception_handler(kind)(answer_invalid)


def bound_messages() -> None:
    """Cut vLLM's sentences before its `sanitize_message` reads them: its regular expressions take quadratic time, half
    a minute for a model's name of 64 KiB, `/a/a/a...`. vLLM's modules import it by name, so it is replaced in each.
    """

    def sanitized(message: str) -> str:
        return sanitize_message(_cut(message, MAX_MESSAGE_CHARS))

    for module in list(sys.modules.values()):
        if module.__name__.startswith("vllm.") and vars(module).get("sanitize_message") is sanitize_message:
            module.sanitize_message = sanitized  # type: ignore[attr-defined]


def fail_fast(node: Any, copies: dict[int, Any] | None = None) -> Any:
    """A copy of a pydantic core schema whose lists and objects stop at their first wrong element. copies: by the `id`
    of a node: a schema uses some in several places."""
    if not isinstance(node, dict | list | tuple):
        return node
    copies = {} if copies is None else copies
    if id(node) not in copies:
        if isinstance(node, dict):
            # A dict of an object's fields may have a field that is called "type": its value is a schema.
            kind = node["type"] if isinstance(node.get("type"), str) else None
            skipped = _VALUES if kind else ()
            copy: Any = {n: part if n in skipped else fail_fast(part, copies) for n, part in node.items()}
            copies[id(node)] = {**copy, "fail_fast": True} if kind in _MANY else copy
        else:
            copies[id(node)] = type(node)(fail_fast(part, copies) for part in node)
    return copies[id(node)]


async def answer_invalid(request: Request, error: RequestValidationError | ValidationError) -> Response:
    """The 400 for a body that does not fit the endpoint. It has the words, the type and the `param` of vLLM's."""
    errors = error.errors()
    text = sanitize_message(client_sentence(errors))
    return HttpError(400, "Bad Request", text, _param_of(errors)).response(request.url.path)


def client_sentence(errors: Iterable[Any]) -> str:
    """The first `MAX_ERRORS` errors of pydantic or FastAPI, each once, without the values."""
    texts = list(dict.fromkeys(map(_text_of, errors)))
    more = [f"and {len(texts) - MAX_ERRORS} more"] if len(texts) > MAX_ERRORS else []
    label = "1 validation error" if len(texts) == 1 else f"{len(texts)} validation errors"
    return f"{label}: {'; '.join([*texts[:MAX_ERRORS], *more])}"


def _text_of(error: Any) -> str:
    if not isinstance(error, dict):
        return _cut(str(error))
    cause = error.get("ctx", {}).get("error")  # of JSON that cannot be parsed, for example `Expecting value`
    text = f"{error['msg']}: {cause}" if isinstance(cause, str) else error["msg"]
    return _cut(f"{_place_of(error)}: {text} ({error['type']})")


def _param_of(errors: Iterable[Any]) -> str | None:
    described = [error for error in errors if isinstance(error, dict)]
    causes = (error.get("ctx", {}).get("error") for error in described)
    if (cause := next((one for one in causes if isinstance(one, VLLMValidationError)), None)) is not None:
        return cause.parameter
    return _place_of(described[0]) if described else None


def _place_of(error: dict[str, Any]) -> str:
    return clean_loc_for_param(tuple(clipped(str(part)) for part in error["loc"]))


def _cut(text: str, most: int = MAX_ERROR_CHARS) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
