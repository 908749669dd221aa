"""An engine that cannot start reports the reason in one sentence, mostly before it starts a process."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from skim_common.errors import ModelError, SkimError
from target_service.engine import create_engine
from target_service.vllm_backend.engine import VllmTarget
from tests.engine.target_service.vllm_backend.cases import build_target, engine_options


@pytest.fixture
def changed_model(tmp_path: Path) -> Callable[..., str]:
    """A random checkpoint with some fields of config.json replaced."""

    def build(**changes: Any) -> str:
        folder = build_target(tmp_path / "model", "llama", max_position=512)
        path = Path(folder, "config.json")
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
        return folder

    return build


def refusal(model: str, device: str, **options: Any) -> str:
    with pytest.raises(SkimError) as error:
        VllmTarget(model, **engine_options(device, **options))
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nowhere"):
        create_engine("vllm", str(tmp_path / "nowhere"))


def test_a_length_past_the_models_positions(changed_model: Callable[..., str], device: str) -> None:
    message = refusal(changed_model(), device, max_model_len=513)
    assert "513" in message
    assert "512" in message


def test_unknown_and_reserved_options(changed_model: Callable[..., str], device: str) -> None:
    model = changed_model()
    assert "'no_such_option'" in refusal(model, device, no_such_option=1)
    assert "'worker_cls'" in refusal(model, device, worker_cls="vllm.v1.worker.cpu_worker.CPUWorker")


def test_an_option_that_vllm_refuses(changed_model: Callable[..., str], device: str) -> None:
    assert "dtype" in refusal(changed_model(), device, dtype="float3")


def test_another_vllm(changed_model: Callable[..., str], device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vllm.__version__", "0.28.0")
    assert "vllm 0.28.0 is installed; install vllm 0.29.0" in refusal(changed_model(), device)


def test_several_positions_per_token(changed_model: Callable[..., str], device: str) -> None:
    assert "XD-RoPE" in refusal(changed_model(xdrope_section=[8, 8, 8, 8]), device)


def test_longrope_below_its_original_length(changed_model: Callable[..., str], device: str) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 128,
        "short_factor": [1.0] * 32,
        "long_factor": [4.0] * 32,
    }
    model = changed_model(rope_parameters=rope, original_max_position_embeddings=128)
    message = refusal(model, device, max_model_len=100)
    assert "longrope" in message
    assert "128" in message


def test_weights_that_are_not_there(changed_model: Callable[..., str], device: str) -> None:
    """The engine's own processes find this error; the reason reaches this process."""
    model = changed_model()
    Path(model, "model.safetensors").unlink()
    message = refusal(model, device)
    assert "did not start" in message
    assert "weights" in message


@pytest.mark.parametrize("connector", ["ExampleConnector", "LMCacheConnectorV1", "MultiConnector"])
def test_kv_connectors_that_may_ignore_positions(
    changed_model: Callable[..., str], device: str, connector: str
) -> None:
    message = refusal(changed_model(), device, kv_transfer_config={"kv_connector": connector, "kv_role": "kv_both"})
    assert message == (
        f"kv_transfer_config names the KV connector {connector}, which may ignore restored positions;"
        " choose NixlConnector or OffloadingConnector, or leave it out"
    )
