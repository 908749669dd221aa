"""The command line in this process, as its entry point runs it."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

import cluster.commands.cli

MODELS = Path(__file__).parents[2] / "demo_models"


@dataclass(frozen=True)
class Ran:
    """Exit code and what was printed; `error` is stderr with its white space made single."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        return " ".join(self.err.split())


@pytest.fixture
def skim(monkeypatch, capfd):
    """`skim("select", "--speculator", folder)` as a user would run it."""
    for name in cluster.commands.cli.QUIET:
        monkeypatch.setenv(name, os.environ.get(name, cluster.commands.cli.QUIET[name]))
    monkeypatch.setenv("COLUMNS", "100")

    def run(*words) -> Ran:
        monkeypatch.setattr("sys.argv", ["skim", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cluster.commands.cli.main()
        out, err = capfd.readouterr()
        return Ran(left.value.code, out, err)

    return run
