"""The model of the tests, in place of all that they ask for."""

from pathlib import Path

import pytest

from tests.peer.hub import build_hub
from tests.peer.source import BUILD
from tests.peer.suite import MODELS


@pytest.fixture(scope="session")
def home(smollm2: Path) -> Path:
    """The value of HF_HOME for vLLM's tests and for our servers."""
    folder = BUILD / "hub"
    build_hub(smollm2, folder, MODELS)
    return folder
