"""Skim with SmolLM2 as both models, where every prompt is speculative, for the clients."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.conftest import Served, serving
from tests.peer.hub import build_hub
from tests.peer.suite import BUILD, MODELS, deployment

NAME = "peer-model"


@pytest.fixture(scope="session")
def home(smollm2: Path) -> Path:
    """The value of HF_HOME for vLLM's tests and for our servers."""
    folder = BUILD / "hub"
    build_hub(smollm2, folder, MODELS)
    return folder


@pytest.fixture(scope="session")
def forced(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    settings = yaml.safe_load(deployment("forced").replace("{model}", str(home / "model")))
    sizes = {"dtype": "float32", "enforce_eager": True, "max_model_len": 8192, "max_num_seqs": 8}
    settings["served_model_name"] = NAME
    settings["speculator"]["engine_options"] = sizes
    tools = {"enable_auto_tool_choice": True, "tool_call_parser": "hermes"}
    settings["target"]["engine_options"] = {**sizes, **tools, "enable_tokenizer_info_endpoint": True}
    with serving(settings, tmp_path_factory.mktemp("forced")) as served:
        yield served
