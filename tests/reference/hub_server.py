"""A model hub on this machine: the part of the API that `huggingface_hub` uses to download, over plain folders.

Answers as the real hub: commits, ETags, ranges, error codes of missing, gated and private repositories and tokens.
"""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

TOKEN = "hf_right"


@dataclass
class Hub:
    """url: for HF_ENDPOINT. repositories: folders by `owner/name`; each has the revision main and one commit.

    gated: names whose files need the token. broken: files whose downloads stop in the middle; the server then refuses
    the rest of the file as often as the number says. downloads: (name, file, first byte) of each body that was sent.
    """

    url: str = ""
    repositories: dict[str, Path] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: dict[str, int] = field(default_factory=dict)
    downloads: list[tuple[str, str, int]] = field(default_factory=list)

    def commit(self, name: str) -> str:
        return hashlib.sha1(name.encode()).hexdigest()


@contextmanager
def hub_server(**repositories: Path) -> Iterator[Hub]:
    """A running hub. repositories: folders by name; they belong to the owner `demo`."""
    hub = Hub(repositories={f"demo/{name}": folder for name, folder in repositories.items()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = unquote(urlsplit(self.path).path).strip("/").split("/")
        is_api = parts[:2] == ["api", "models"]
        name, rest = "/".join(parts[2:4] if is_api else parts[:2]), parts[4:] if is_api else parts[2:]
        token, folder = self.headers.get("Authorization"), self.hub.repositories.get(name)
        revision = rest[1] if len(rest) > 1 else "main"
        if token not in (None, f"Bearer {TOKEN}"):
            self._refuse(401, message="Invalid credentials in Authorization header")
        elif folder is None:
            self._refuse(404 if token else 401, "RepoNotFound", "Repository not found")
        elif revision not in ("main", self.hub.commit(name)):
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        elif is_api:
            files = sorted(path for path in folder.rglob("*") if path.is_file())
            tree = [_entry(path, folder) for path in files]
            self._json(tree if rest[:1] == ["tree"] else {"id": name, "sha": self.hub.commit(name)})
        elif name in self.hub.gated and token is None:
            self._refuse(401, "GatedRepo", f"Access to model {name} is restricted")
        else:
            self._file(name, folder / "/".join(rest[2:]))

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Nothing: the terminal belongs to the tests."""

    def _file(self, name: str, path: Path) -> None:
        content, broken = path.read_bytes(), self.hub.broken
        first = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").split("-")[0])
        if first and broken.get(path.name, 0) > 0:
            broken[path.name] -= 1
            self._refuse(500, message="out of order")
            return
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(content) - 1}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", self.hub.commit(name))
        self.send_header("Content-Length", str(len(content) - first))
        self.end_headers()
        if self.command == "HEAD":
            return
        self.hub.downloads.append((name, path.name, first))
        if first == 0 and path.name in broken:
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        else:
            self.wfile.write(content[first:])

    def _json(self, answer: object) -> None:
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status: int, code: str | None = None, message: str = "") -> None:
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", message)
        self.send_header("Content-Length", "0")
        self.end_headers()


def _entry(path: Path, folder: Path) -> dict[str, object]:
    content = path.read_bytes()
    return {
        "type": "file",
        "path": str(path.relative_to(folder)),
        "size": len(content),
        "oid": hashlib.sha1(content).hexdigest(),
    }
