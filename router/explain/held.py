"""Routes that show what some router holds of a request: this one, or another one that it asks."""

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from router.admission.rate_limits import caller_of
from router.options.errors import HttpError

PATH = "/v1/requests/{request_id}"

Held = Callable[[str, str], Awaitable[str | None]]
"""What is held of a request, by its id and the name of its API key, as JSON text; None if nothing is."""


def engine_names(request_id: str) -> tuple[str, ...]:
    """The possible engines' ids of the first prompt. vLLM appends a prompt's number: `-0` (completions) or `_0`.

    request_id: the id in the response's body.
    """
    return request_id, f"{request_id}-0", f"{request_id}_0"


def add_route(app: FastAPI, path: str, held: Held, others: Held | None, missing: str) -> None:
    """Answer `GET path` on the router's app. A request of another API key is not found.

    held, others: of this router, and of the others, which are asked if this one holds nothing. missing: the sentence of
    the 404, with a place for the id.
    """

    @app.get(path)
    async def answer(request_id: str, request: Request) -> Response:
        caller = caller_of(request.scope)
        key = caller.key.name if caller else ""
        found = await held(request_id, key)
        if found is None and others is not None:
            found = await others(request_id, key)
        if found is not None:
            return Response(found, media_type="application/json")
        return JSONResponse(HttpError(404, "NotFoundError", missing.format(request_id), "request_id").body(), 404)
