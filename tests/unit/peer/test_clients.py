"""docs/compatibility.md lists the clients that a night tries, and each has a script."""

from tests.peer.__main__ import PAGE
from tests.peer.test_clients import CLIENTS, NPM, OURS, PYPI


def test_the_page_lists_the_clients() -> None:
    table = PAGE.read_text().partition("\n## Clients\n")[2]
    tried = [*OURS, *PYPI.values(), *(package for packages in NPM.values() for package in packages)]
    missing = {name for name in tried if f"`{name}`" not in table}
    assert missing == {"zod@4.6.7"}, "a part of the AI SDK's own example, no client"


def test_each_client_has_a_script() -> None:
    assert {file.stem for file in CLIENTS.glob("use_*.py")} == {f"use_{name}" for name in (*OURS, *PYPI)}
