"""The explain view of this router: it holds the latest selections.

It holds numbers, no text.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import FastAPI

from router.explain.explained import Explained
from router.explain.held import PATH, Held, add_route, engine_names
from router.explain.shares import KeyShares
from router.pools.migration import Migration

MAX_CALLS = 1024
MAX_BYTES = 64 * 2**20
CALL_SHARE = 16
"""A call of many prompts has at most this fraction (1/16) of the bytes; prompts beyond it leave no entry."""


@dataclass(slots=True, eq=False)
class Entry:
    """What is held of one prompt. explained: None for a dense prompt, which is held only if its answer moved."""

    prompt_tokens: int
    explained: Explained | None = None
    migrations: list[Migration] = field(default_factory=list)
    catch_up: Mapping[str, Any] | None = None

    @property
    def nbytes(self) -> int:
        return 0 if self.explained is None else self.explained.nbytes

    def as_json(self) -> dict[str, Any]:
        """JSON values: those of `Explained.as_json`, and `catch_up` and `migrations` if there are any."""
        if self.explained is None:
            shown: dict[str, Any] = {"prompt_tokens": self.prompt_tokens, "kept_tokens": self.prompt_tokens}
        else:
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


class SelectionLog:
    """The entries of the latest calls, at most `max_calls` and `max_bytes`, with a share for each API key.

    An entry has the name of the call's API key (empty without keys), and the engines' id of its prompt. A call is named
    by the id of its first prompt, and has one place, however many prompts it has.
    """

    def __init__(self, *, max_calls: int = MAX_CALLS, max_bytes: int = MAX_BYTES) -> None:
        self._calls: KeyShares[_Call] = KeyShares(max_bytes, max_calls)
        self._max_of_many = max_bytes // CALL_SHARE

    def add(self, request_id: str, entry: Entry, key: str = "", call: str = "") -> None:
        """call: its name; empty: the prompt is the call's first."""
        call = call or request_id
        held = self._calls.get(key, call)
        if held is None or request_id in held.entries:  # a later call of the same id
            held = _Call()
        size = entry.nbytes + len(request_id)
        if not held.entries or held.nbytes + size <= self._max_of_many:
            held.entries[request_id] = entry
            held.nbytes += size
            self._calls.put(key, call, held, held.nbytes)

    def note_migration(
        self, request_id: str, prompt_tokens: int, migration: Migration, key: str = "", call: str = ""
    ) -> None:
        """Add to the prompt's entry; a dense one gets one now. key, call: as in `add`."""
        if self._entry(request_id, key) is None:
            self.add(request_id, Entry(prompt_tokens), key, call)
        if (entry := self._entry(request_id, key)) is not None:
            entry.migrations.append(migration)

    def note_catch_up(self, request_id: str, found: Mapping[str, Any], key: str = "") -> None:
        """Show how far the request's catch-up is, if its entry is still held."""
        if (entry := self._entry(request_id, key)) is not None:
            entry.catch_up = found

    def get(self, request_id: str, key: str = "") -> Entry | None:
        """Look up by the id in the response body."""
        found = (self._entry(name, key) for name in engine_names(request_id))
        return next((entry for entry in found if entry is not None), None)

    def _entry(self, name: str, key: str) -> Entry | None:
        return next((call.entries[name] for call in self._calls.latest(key) if name in call.entries), None)


class ExplainView:
    """Answers `GET /v1/requests/{id}/selection` on one router."""

    def __init__(self, log: SelectionLog) -> None:
        self._log = log

    async def held(self, request_id: str, key: str = "") -> str | None:
        """This router's entry as JSON text; None without one."""
        entry = self._log.get(request_id, key)
        if entry is None:
            return None
        # A long prompt takes milliseconds, in which the router would stream no answer.
        return await asyncio.to_thread(lambda: json.dumps(entry.as_json()))

    def add_route(self, app: FastAPI, others: Held | None = None) -> None:
        missing = "no selection is held for {}: it ran dense, is too old, or its router is gone"
        add_route(app, f"{PATH}/selection", self.held, others, missing)
