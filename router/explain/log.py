"""What a router holds of its latest requests, and the routes that show it, also from the other routers.

It holds numbers and names, no text. Each API key has a share of the room.
"""

import asyncio
import json
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import Response

from router.admission.api_keys import caller_of
from router.explain.explained import Explained
from router.options.errors import HttpError
from router.pools.migration import Migration

MAX_CALLS, MAX_CALL_BYTES = 1024, 64 * 2**20
"""The calls whose selections are held, and their bytes."""
CALL_SHARE = 16
"""A call of many prompts has at most this fraction (1/16) of the bytes; prompts beyond it leave no entry."""
MAX_REPORTS, MAX_REPORT_BYTES = 4096, 16 * 2**20
"""The requests whose headers are held, and their bytes."""

Part = Literal["selection", "report"]
AskOthers = Callable[[Part, str, str], Awaitable[str | None]]
"""What another router holds of a request, by its id and the name of its API key, as JSON text; None if nothing is."""

ROUTES: dict[str, tuple[Part, str]] = {
    "/v1/requests/{request_id}/selection": (
        "selection",
        "no selection is held for {}: it ran dense, is too old, or its router is gone",
    ),
    "/v1/requests/{request_id}": (
        "report",
        "no values are held for {}: it has no first token yet, is too old, has too many prompts, or its router is gone",
    ),
}
"""By path: what is shown, and the sentence of the 404, with a place for the id."""

Value = TypeVar("Value")


class KeyShares(Generic[Value]):
    """The latest values by the name of the API key (empty without keys) and a name that a client may choose.

    Beyond `max_bytes`, or `max_values` of the least size, the oldest value of the key that holds most is removed, so no
    key removes the values of one that holds less. The names count.
    """

    def __init__(self, max_bytes: int, max_values: int) -> None:
        self._max_bytes, self._least = max_bytes, max_bytes // max_values
        self._values: OrderedDict[tuple[str, str], tuple[Value, int]] = OrderedDict()
        self._bytes = Counter[str]()

    def put(self, key: str, name: str, value: Value, size: int) -> None:
        """Hold a value of so many bytes, in place of an earlier one of this name."""
        self._remove(key, name)
        size = max(size + len(name), self._least)
        self._values[key, name] = value, size
        self._bytes[key] += size
        while self._bytes.total() > self._max_bytes:
            [(largest, _)] = self._bytes.most_common(1)
            self._remove(*next(one for one in self._values if one[0] == largest))

    def _remove(self, key: str, name: str) -> None:
        if (held := self._values.pop((key, name), None)) is not None:
            self._bytes[key] -= held[1]
            if not self._bytes[key]:
                del self._bytes[key]

    def get(self, key: str, name: str) -> Value | None:
        held = self._values.get((key, name))
        return None if held is None else held[0]

    def latest(self, key: str) -> Iterator[Value]:
        """All values of a key, the latest first."""
        return (value for (owner, _), (value, _) in reversed(self._values.items()) if owner == key)


@dataclass(slots=True, eq=False)
class Entry:
    """What is held of one prompt. explained: None for a dense prompt, which is held only if its answer moved."""

    prompt_tokens: int
    explained: Explained | None = None
    migrations: list[Migration] = field(default_factory=list)
    catch_up: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """As `Explained.as_json`, with `catch_up` and `migrations` if there are any."""
        shown: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "kept_tokens": self.prompt_tokens}
        if self.explained is not None:
            shown = self.explained.as_json()
        if self.catch_up is not None:
            shown["catch_up"] = dict(self.catch_up)
        if self.migrations:
            shown["migrations"] = [asdict(migration) for migration in self.migrations]
        return shown


@dataclass(slots=True, eq=False)
class _Call:
    """The entries of a call's prompts, by their ids."""

    entries: dict[str, Entry] = field(default_factory=dict)
    nbytes: int = 0


class RequestLog:
    """The selections of the latest calls, and the values of the latest requests' `x-skim-*` headers.

    A request is named by the engines' id of its first prompt, which the client may choose, and by the name of its API
    key. A call has one place, however many prompts it has.
    """

    def __init__(self, *, max_calls: int = MAX_CALLS, max_bytes: int = MAX_CALL_BYTES) -> None:
        self._calls: KeyShares[_Call] = KeyShares(max_bytes, max_calls)
        self._max_of_many = max_bytes // CALL_SHARE
        self._reports: KeyShares[str] = KeyShares(MAX_REPORT_BYTES, MAX_REPORTS)

    def add_report(self, request_id: str, values: Mapping[str, str], key: str = "") -> None:
        """values: of the headers, by name."""
        headers = json.dumps(values)
        self._reports.put(key, request_id, headers, len(headers))

    def report(self, request_id: str, key: str = "") -> str | None:
        """The values of a request's headers as JSON text; None if none are held."""
        headers = _first(request_id, partial(self._reports.get, key))
        return None if headers is None else f'{{"id": {json.dumps(request_id)}, "headers": {headers}}}'

    def add(self, request_id: str, entry: Entry, key: str = "", call: str = "") -> None:
        """call: its name; empty: the prompt is the call's first."""
        call = call or request_id
        held = self._calls.get(key, call)
        if held is None or request_id in held.entries:  # a later call of the same id
            held = _Call()
        size = len(request_id) + (entry.explained.nbytes if entry.explained else 0)
        if not held.entries or held.nbytes + size <= self._max_of_many:
            held.entries[request_id] = entry
            held.nbytes += size
            self._calls.put(key, call, held, held.nbytes)

    def note_migration(
        self, request_id: str, prompt_tokens: int, migration: Migration, key: str = "", call: str = ""
    ) -> None:
        """Add to the prompt's entry; a dense one gets one now. key, call: as in `add`."""
        if (entry := self._entry(key, request_id)) is None:
            self.add(request_id, entry := Entry(prompt_tokens), key, call)
        entry.migrations.append(migration)

    def note_catch_up(self, request_id: str, state: Mapping[str, Any], key: str = "") -> None:
        """Show how far the request's catch-up is, if its entry is still held."""
        if (entry := self._entry(key, request_id)) is not None:
            entry.catch_up = state

    def get(self, request_id: str, key: str = "") -> Entry | None:
        """Look up by the id in the response body."""
        return _first(request_id, partial(self._entry, key))

    def _entry(self, key: str, name: str) -> Entry | None:
        return next((call.entries[name] for call in self._calls.latest(key) if name in call.entries), None)

    async def held(self, part: Part, request_id: str, key: str = "") -> str | None:
        """What this router holds of a request, as JSON text; None if nothing is. request_id: of the response's body."""
        if part == "report":
            return self.report(request_id, key)
        entry = self.get(request_id, key)
        # A long prompt takes milliseconds, in which the router would stream no answer.
        return None if entry is None else await asyncio.to_thread(lambda: json.dumps(entry.as_json()))

    def add_routes(self, app: FastAPI, ask_others: AskOthers | None = None) -> None:
        """Answer ROUTES. What this router does not hold is asked for; a request of another API key is not found."""
        for path, (part, missing) in ROUTES.items():
            app.get(path)(partial(self._answer, part, missing, ask_others))

    async def _answer(
        self, part: Part, missing: str, ask_others: AskOthers | None, request_id: str, request: Request
    ) -> Response:
        caller = caller_of(request.scope)
        key = caller.key.name if caller else ""
        text = await self.held(part, request_id, key)
        if text is None and ask_others is not None:
            text = await ask_others(part, request_id, key)
        if text is not None:
            return Response(text, media_type="application/json")
        return HttpError(404, "NotFoundError", missing.format(request_id), "request_id").response()


def _first(request_id: str, look_up: Callable[[str], Value | None]) -> Value | None:
    """What is found by one of the possible engines' ids of the first prompt. vLLM appends a prompt's number: `-0`
    (completions) or `_0`."""
    values = map(look_up, (request_id, f"{request_id}-0", f"{request_id}_0"))
    return next((value for value in values if value is not None), None)
