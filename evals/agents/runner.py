"""A program: runs code, and then the code that checks it, both from stdin, and prints the word that it was given there.

It is started by `evals.agents.execute`, as a file and without a package. The word tells that all of it ran: code that
ends the process early cannot print it. An audit hook refuses network, processes and changes of files, and limits of the
process bound time and memory. That holds for what a model writes by mistake; it is no jail for an attacker.
"""

import json
import os
import resource
import sys
from typing import Any

REFUSED = (
    *("socket.", "ssl.", "ctypes.", "subprocess.", "shutil.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser."),
    *("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.startfile", "os.kill", "pty.", "signal."),
    *("os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.truncate", "os.ch", "os.putenv"),
)
"""Beginnings of the names of audit events (Python's table of them) that end the run."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook. Raises PermissionError, and no code can remove the hook."""
    writes = event == "open" and isinstance(arguments[2], int) and bool(arguments[2] & WRITES)
    if writes or event.startswith(REFUSED):
        raise PermissionError(event)


def main() -> None:
    """Read {"code", "check", "word", "seconds", "bytes"} from stdin and run it."""
    asked = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (asked["seconds"], asked["seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (asked["bytes"], asked["bytes"]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    word, told = asked["word"], os.dup(1)
    sys.addaudithook(refuse)
    names: dict[str, Any] = {"__name__": "answer"}
    for part in ("code", "check"):
        exec(compile(asked[part], part, "exec"), names)  # nosec B102
    os.write(told, f"\n{json.dumps({'word': word, 'value': names.get('value')})}\n".encode())


if __name__ == "__main__":
    main()
