"""The command line in this process, as its entry point runs it."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from huggingface_hub import constants

import cluster.commands.cli
from cluster.commands import output
from skim_common.proxies import DIRECT_GRPC
from tests.reference.hub_server import hub_server

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
    for name in ("no_proxy", "NO_PROXY", *DIRECT_GRPC):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # the entry point sets them
    monkeypatch.setenv("COLUMNS", "100")
    for console in (output.console, output.progress):  # a console reads COLUMNS when it is made
        monkeypatch.setattr(console, "_width", 100)

    def run(*words) -> Ran:
        monkeypatch.setattr("sys.argv", ["skim", *map(str, words)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cluster.commands.cli.main()
        out, err = capfd.readouterr()
        return Ran(left.value.code, out, err)

    return run


def reach(monkeypatch, url: str) -> None:
    """Set the client's HF_ENDPOINT."""
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub with the demo pair, and a client with an empty cache. The client has read its variables when imported."""
    with hub_server(target=MODELS / "target", speculator=MODELS / "speculator") as hub:
        reach(monkeypatch, hub.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 2**20)  # the demo models are smaller than the real one
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.chdir(tmp_path)
        yield hub
