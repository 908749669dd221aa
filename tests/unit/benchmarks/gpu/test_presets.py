"""The presets have the sizes of the named models, and the memory that they need is computed correctly."""

import pytest
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.gpu.engines import SLACK
from benchmarks.gpu.memory import GIB, Need, kv_bytes, shares, weight_bytes
from benchmarks.gpu.presets import MODELS, PRESETS, configs, make_folder, preset
from benchmarks.gpu.ttft import prompt_ids
from skim_common.errors import SkimError
from skim_common.models.info import inspect_model
from speculator_service.model import check_speculator

# From the model cards: parameters in billions.
PARAMETERS = {"llama-1b": 1.236, "llama-8b": 8.030, "qwen-32b": 32.76}


@pytest.mark.parametrize("name", PARAMETERS)
def test_sizes_are_those_of_the_models(name):
    assert weight_bytes(MODELS[name]) / 2e9 == pytest.approx(PARAMETERS[name], rel=1e-3)


def test_weights_and_keys_are_counted():
    config = MODELS["toy-small"]
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    assert weight_bytes(config) == 2 * model.num_parameters()
    assert kv_bytes(MODELS["llama-8b"], 131072) == 16 * GIB
    assert kv_bytes(MODELS["llama-1b"], 131072) == 4 * GIB


@pytest.mark.parametrize("name", PRESETS)
def test_engines_take_folders_without_weights(name, tmp_path):
    both = configs(preset(name))
    folders = [make_folder(config, tmp_path / role) for config, role in zip(both, ("big", "small"), strict=True)]
    target, speculator = (inspect_model(folder, engine="vllm") for folder in folders)
    check_speculator(folders[1], speculator.max_model_len)
    assert both[0]["vocab_size"] == both[1]["vocab_size"]
    assert min(target.vocab_size, speculator.vocab_size) > prompt_ids(10_000, 0).max()
    assert target.max_position > max(preset(name).lengths) + SLACK


def test_a_pair_that_fits_shares_the_device():
    needs = [Need("small", 2 * GIB, 4 * GIB, 1000, 2 * GIB), Need("big", 16 * GIB, 16 * GIB, 1000, 2 * GIB)]
    parts = shares(needs, 80 * GIB, 78 * GIB)
    assert sum(parts) == pytest.approx(0.94)
    assert all(80 * GIB * part >= need.total for part, need in zip(parts, needs, strict=True))
    # Another process holds half of the device.
    assert sum(shares(needs, 80 * GIB, 43 * GIB)) == pytest.approx(43 / 80)


def test_a_pair_that_does_not_fit_is_refused_in_a_sentence():
    needs = [Need("the target", 65 * GIB, 33 * GIB, 131584)]
    with pytest.raises(
        SkimError, match=r"the target \(65.0 GiB of weights, 33.0 of KV for 131584 tokens\).*need 102.0 "
    ):
        shares(needs, 80 * GIB, 79 * GIB)


def test_the_big_pair_fits_one_big_gpu_and_not_a_small_one():
    target, speculator = configs(preset("32b"))
    needs = [Need(c["model_type"], weight_bytes(c), kv_bytes(c, 131584), 131584) for c in (target, speculator)]
    shares(needs, 139 * GIB, 138 * GIB)
    with pytest.raises(SkimError):
        shares(needs, 80 * GIB, 79 * GIB)


def test_a_name_that_is_not_there():
    with pytest.raises(SkimError, match="8b, 32b, toy"):
        preset("70b")
