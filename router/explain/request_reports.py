"""What was told of the latest requests: `GET /v1/requests/{id}` shows the values of their `x-skim-*` headers again.

A stream that was opened before its first token has only a part of them in its headers.
"""

import json
from collections.abc import Mapping

from cachetools import FIFOCache
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from router.admission.rate_limits import caller_of
from router.explain.selection_log import AskOthers, engine_names
from router.options.errors import HttpError

MAX_REPORTS = 4096


class RequestReports:
    """The values of the latest requests by API key's name and id, at most `MAX_REPORTS`."""

    def __init__(self) -> None:
        self._reports: FIFOCache[tuple[str, str], Mapping[str, str]] = FIFOCache(MAX_REPORTS)

    def add(self, request_id: str, values: Mapping[str, str], key: str = "") -> None:
        """values: of the headers, by name. request_id: the engines' id of the first prompt."""
        self._reports[key, request_id] = values

    def held(self, request_id: str, key: str = "") -> str | None:
        """The report as JSON text, by the id in the response's body; None if none is held."""
        for name in engine_names(request_id):
            if (key, name) in self._reports:
                return json.dumps({"id": request_id, "headers": self._reports[key, name]})
        return None

    def add_route(self, app: FastAPI, ask_others: AskOthers | None = None) -> None:
        """Add the route to the router's app. A request of another API key is not found.

        ask_others: asks the other routers' `held`.
        """

        @app.get("/v1/requests/{request_id}")
        async def report(request_id: str, request: Request) -> Response:
            caller = caller_of(request.scope)
            key = caller.key.name if caller else ""
            found = self.held(request_id, key)
            if found is None and ask_others is not None:
                found = await ask_others(request_id, key)
            if found is not None:
                return Response(found, media_type="application/json")
            message = (
                f"no values are held for {request_id}: it has no first token yet, is too old, or its router is gone"
            )
            return JSONResponse(HttpError(404, "NotFoundError", message, "request_id").body(), 404)
