"""The program that Ray starts as HAProxy: it changes HAProxy's configuration, then becomes HAProxy.

`haproxy.py` runs it as a script, with the path of the binary and HAProxy's arguments. It imports nothing of Skim, so
that it starts fast.
"""

import ctypes
import os
import re
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

PRIVATE_PORTS = ("RAY_SERVE_HAPROXY_STATS_PORT", "RAY_SERVE_HAPROXY_METRICS_PORT")
"""Environment variables with the ports of HAProxy's own statistics."""

HEADERS_S = 30
"""Seconds that a client has for the headers of a request, as HAProxy's `timeout http-request`."""

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

# The last line on a time-out in a section counts. The first two lines after the section's name are ours.
_OTHER_TIMEOUT = r"^frontend http_frontend\n.*\n.*\n(?:(?![a-z]).*\n)*?(?![a-z]).*timeout http-request "

_CLOSE_WHEN_DRAINING = "http-after-response set-header connection close if { res.hdr(x-skim-draining) -m found }"

_NOT_READY = (
    '503 content-type application/json string \'{"error": {"message": "this deployment is not ready yet; try again in a'
    ' moment", "type": "ServiceUnavailableError", "param": null, "code": 503}}\' hdr Retry-After 5'
)


def changed(config: str, ports: Mapping[str, str]) -> str:
    """HAProxy's configuration (ray.serve._private.haproxy_templates) with five changes.

    HAProxy's statistics can be read from this machine only; Ray binds them to every address. Request bodies are not
    spliced: with splicing, HAProxy 2.8.25 often misses that the client hung up, even with `abortonclose`, and the pools
    go on computing. A HAProxy that has started again answers 503 until it knows a router; Ray has a 404 there, because
    no path of the application is known yet. And a client whose headers are not complete after `HEADERS_S` gets a 408;
    Ray waits for an hour from each byte to the next. An answer of a router that leaves (`router.http.draining`) closes
    the client's connection. ports: the port of each of `PRIVATE_PORTS`.
    """
    for pattern, replacement in _changes(ports):
        config = re.sub(pattern, replacement, config, flags=re.MULTILINE)
    return config


def can_change(config: str, ports: Mapping[str, str]) -> bool:
    """Whether `changed` finds each line that it looks for once, and no similar line is left after it."""
    found = all(len(re.findall(pattern, config, re.MULTILINE)) == 1 for pattern, _ in _changes(ports))
    open_bind = rf"^\s*bind (?!127\.0\.0\.1:).*(?:{'|'.join(_private(ports))})(?!\d)"
    left = re.search(
        rf"^\s*option splice-(?:request|auto)|{open_bind}|{_OTHER_TIMEOUT}", changed(config, ports), re.MULTILINE
    )
    return found and left is None


def _changes(ports: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Regular expressions and their replacements; each is for one line."""
    yield r"^\s*option splice-request\n", ""
    # In the frontend it overrides what the section `defaults` may say.
    yield r"^(frontend http_frontend)$", rf"\1\n    timeout http-request {HEADERS_S}s\n    {_CLOSE_WHEN_DRAINING}"
    yield (
        r'^(\s*http-request return status )404 content-type text/plain lf-string ".*not found.*"$',
        rf"\g<1>{_NOT_READY}",
    )
    for port in _private(ports):
        yield rf"^(\s*bind )\*?:({port})$", r"\g<1>127.0.0.1:\2"


def _private(ports: Mapping[str, str]) -> list[str]:
    return [re.escape(ports[name]) for name in PRIVATE_PORTS]


def main(binary: str, *arguments: str) -> None:
    """Become HAProxy. It dies with its parent: a killed parent cannot stop it, and the next Ray needs its port."""
    if "-f" in arguments:
        file = Path(arguments[arguments.index("-f") + 1])
        file.write_text(changed(file.read_text(encoding="utf-8"), os.environ), encoding="utf-8")
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.execv(binary, [binary, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
