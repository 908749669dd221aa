"""What was told of the latest requests: `GET /v1/requests/{id}` shows the values of their `x-skim-*` headers again.

A stream that was opened before its first token has only a part of them in its headers.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter

from cachetools import FIFOCache
from fastapi import FastAPI

from router.explain.held import PATH, Held, add_route, engine_names

MAX_REPORTS = 4096
MAX_BYTES = 16 * 2**20


class RequestReports:
    """The values of the latest requests by API key's name and id, as JSON text: at most `MAX_REPORTS` and `MAX_BYTES`.

    A completions request with many prompts has many values. The client may choose the id.
    """

    def __init__(self) -> None:
        # The headers, and the bytes that count: at least the share of one of MAX_REPORTS.
        self._reports: FIFOCache[tuple[str, str], tuple[str, int]] = FIFOCache(MAX_BYTES, getsizeof=itemgetter(1))

    def add(self, request_id: str, values: Mapping[str, str], key: str = "") -> None:
        """values: of the headers, by name. request_id: the engines' id of the first prompt."""
        headers = json.dumps(values)
        size = max(len(headers) + len(request_id), MAX_BYTES // MAX_REPORTS)
        self._reports.pop((key, request_id), None)
        with suppress(ValueError):  # larger than all that may be held
            self._reports[key, request_id] = headers, size

    def held(self, request_id: str, key: str = "") -> str | None:
        """The report as JSON text, by the id in the response's body; None if none is held."""
        for name in engine_names(request_id):
            if (key, name) in self._reports:
                return f'{{"id": {json.dumps(request_id)}, "headers": {self._reports[key, name][0]}}}'
        return None

    def add_route(self, app: FastAPI, others: Held | None = None) -> None:
        async def held(request_id: str, key: str) -> str | None:
            return self.held(request_id, key)

        why = "it has no first token yet, is too old, has too many prompts, or its router is gone"
        add_route(app, PATH, held, others, f"no values are held for {{}}: {why}")
