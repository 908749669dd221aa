"""docs/compatibility.md lists the clients that a night tries, and each has a script."""

from tests.peer.__main__ import PAGE
from tests.peer.test_clients import CLIENTS, NPM, OURS, PYPI


def test_the_page_lists_the_clients() -> None:
    table = PAGE.read_text().partition("\n## Clients\n")[2]
    tried = [*OURS, *(package for packages in (PYPI | NPM).values() for package in packages)]
    missing = {name for name in tried if f"`{name}`" not in table}
    assert missing == {"zod@4.6.7", "torch==2.13.0+cpu"}, "what the AI SDK's example and guidellm need, no clients"


def test_each_client_has_a_script() -> None:
    assert {file.stem for file in CLIENTS.glob("use_*.py")} == {f"use_{name}" for name in (*OURS, *PYPI)}
