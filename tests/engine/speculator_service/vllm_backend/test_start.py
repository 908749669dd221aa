"""A speculator that cannot start reports the reason in one sentence. No test here runs a prompt."""

import inspect
import os

import pytest

from skim_common.errors import ModelError, SkimError
from tests.reference.models import build_model
from tools.hook_names import rows


@pytest.fixture
def speculator():
    from speculator_service.vllm_backend.engine import VllmSpeculator

    return VllmSpeculator


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("llama"), "llama")


@pytest.fixture
def no_process(monkeypatch):
    """Fails the test if an engine process is started."""
    from vllm.v1.engine.async_llm import AsyncLLM

    monkeypatch.setattr(AsyncLLM, "from_vllm_config", lambda *a, **k: pytest.fail("an engine was started"))


@pytest.mark.usefixtures("no_process")
def test_a_bad_folder_never_starts_an_engine(speculator, tmp_path):
    with pytest.raises(ModelError, match="does not exist"):
        speculator(str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match="sliding-window attention in every layer; set max_model_len to at most 256"):
        speculator(build_model(tmp_path, "mistral", sliding_window=256))


@pytest.mark.usefixtures("no_process")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"look_aheads": 3}, "unknown speculator engine option 'look_aheads'"),
        (
            {"disable_sliding_window": True},
            "option 'disable_sliding_window' is set by Skim: remove it",
        ),
        ({"tensor_parallel_size": 2}, "'tensor_parallel_size' is set by Skim: set speculator.tensor_parallel instead"),
        ({"max_model_len": 10**6}, "max_model_len .*8192.*1000000"),
        ({"pipeline_parallel_size": 2}, "cannot run with pipeline parallel 2 yet"),
        ({"kv_cache_dtype": "int8_per_token_head"}, "cannot run with a KV cache of type int8_per_token_head yet"),
        ({"max_num_seqs": 0}, "did not start: .*max_num_seqs"),
        ({"dtype": "float7"}, "did not start: dtype"),
    ],
)
def test_bad_options_never_start_an_engine(speculator, llama, options, message):
    with pytest.raises(SkimError, match=message) as caught:
        speculator(llama, **options)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("no_process")
def test_another_vllm_never_starts_an_engine(speculator, llama, monkeypatch):
    monkeypatch.setattr("vllm.__version__", "0.30.1")
    with pytest.raises(SkimError, match=r"vllm 0\.30\.1 is installed; install vllm 0\.29\.0$"):
        speculator(llama)


def test_every_method_that_is_overridden_is_in_the_table_of_hooks():
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.worker.gpu_worker import Worker

    from speculator_service.vllm_backend.scheduler import SpeculatorScheduler
    from speculator_service.vllm_backend.worker import SpeculatorWorker

    named = {symbol.name for row in rows() for symbol in row.symbols}
    for ours, theirs in ((SpeculatorScheduler, Scheduler), (SpeculatorWorker, Worker)):
        own = [cls for cls in ours.__mro__ if cls.__module__.startswith("speculator_service.")]
        methods = {name for cls in own for name, value in vars(cls).items() if inspect.isfunction(value)}
        overridden = {f"{theirs.__name__}.{name}" for name in methods - {"__init__"} if hasattr(theirs, name)}
        assert overridden
        assert overridden <= named


def test_a_failure_in_the_engines_own_processes_is_named(speculator, llama):
    """The engine core detects a KV cache that is too small, after the workers have started."""
    with pytest.raises(SkimError, match=r"did not start: .*KV cache") as caught:
        speculator(llama, enforce_eager=True, num_gpu_blocks_override=4)
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is not None
    assert not [name for name in os.environ if name.startswith("SKIM_")]


def test_a_refusal_of_the_layers_is_a_model_error(speculator, tmp_path):
    """Falcon looks like a plain model until its layers are built: these have ALiBi."""
    import json

    import transformers

    path = build_model(tmp_path, "llama")
    config = transformers.FalconConfig(
        vocab_size=1024,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=1024,
        alibi=True,
        dtype="float32",
    )
    transformers.FalconForCausalLM(config).save_pretrained(path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "falcon"
    with pytest.raises(ModelError, match="it has ALiBi"):
        speculator(path, enforce_eager=True)
