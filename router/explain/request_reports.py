"""What was told of the latest requests: `GET /v1/requests/{id}` shows the values of their `x-skim-*` headers again.

A stream that was opened before its first token has only a part of them in its headers.
"""

import json
from collections.abc import Mapping

from fastapi import FastAPI

from router.explain.held import PATH, Held, add_route, engine_names
from router.explain.shares import KeyShares

MAX_REPORTS = 4096
MAX_BYTES = 16 * 2**20


class RequestReports:
    """The values of the latest requests by API key's name and id, as JSON text: at most `MAX_REPORTS` and `MAX_BYTES`,
    with a share for each key.

    A completions request with many prompts has many values. The client may choose the id.
    """

    def __init__(self) -> None:
        self._reports: KeyShares[str] = KeyShares(MAX_BYTES, MAX_REPORTS)

    def add(self, request_id: str, values: Mapping[str, str], key: str = "") -> None:
        """values: of the headers, by name. request_id: the engines' id of the first prompt."""
        headers = json.dumps(values)
        self._reports.put(key, request_id, headers, len(headers))

    def held(self, request_id: str, key: str = "") -> str | None:
        """The report as JSON text, by the id in the response's body; None if none is held."""
        for name in engine_names(request_id):
            if (headers := self._reports.get(key, name)) is not None:
                return f'{{"id": {json.dumps(request_id)}, "headers": {headers}}}'
        return None

    def add_route(self, app: FastAPI, others: Held | None = None) -> None:
        async def held(request_id: str, key: str) -> str | None:
            return self.held(request_id, key)

        why = "it has no first token yet, is too old, has too many prompts, or its router is gone"
        add_route(app, PATH, held, others, f"no values are held for {{}}: {why}")
