"""Clients that send streamed requests in a loop, each on a connection that it keeps."""

import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import httpx

from demo_models.documents import make_document

BODY = {"model": "skim-demo", "messages": make_document(1500, 1).messages, "max_tokens": 20, "stream": True}
CLIENTS = 6


@dataclass
class Load:
    """Clients in a context. failed: the errors, each with whether the stream had begun.

    modes, connections: of the answers, by the value of `x-skim-mode` and `connection`.
    """

    url: str
    answered: int = 0
    modes: Counter[str] = field(default_factory=Counter)
    connections: Counter[str] = field(default_factory=Counter)
    failed: list[tuple[bool, str]] = field(default_factory=list)

    def __enter__(self) -> "Load":
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=self._ask) for _ in range(CLIENTS)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        with httpx.Client(base_url=self.url, timeout=60) as client:
            while not self._ended.is_set():
                streamed, began = False, time.monotonic()
                try:
                    with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
                        self.modes[response.headers.get("x-skim-mode", "none")] += 1
                        self.connections[response.headers.get("connection", "none")] += 1
                        for line in response.iter_lines():
                            streamed = streamed or '"content"' in line
                            if '"error"' in line:
                                raise RuntimeError(line)
                    if response.status_code != 200:
                        raise RuntimeError(f"status {response.status_code}")
                    self.answered += 1
                except Exception as error:
                    self.failed.append((streamed, f"{time.monotonic() - began:.1f} s: {error!r}"[:200]))

    def go_on(self, answers: int = 2 * CLIENTS) -> None:
        """Wait until this many more requests are answered."""
        goal, deadline = self.answered + answers, time.monotonic() + 90
        while self.answered < goal and time.monotonic() < deadline:
            time.sleep(0.1)
        assert self.answered >= goal, self.failed
