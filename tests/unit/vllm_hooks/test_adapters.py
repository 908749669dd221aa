"""LoRA adapters before an engine starts: their names, files and ranks, and how they are loaded."""

import json
from types import SimpleNamespace

import pytest
from vllm.v1.engine.exceptions import EngineDeadError

from skim_common.errors import ModelError, SkimError
from vllm_hooks import adapters
from vllm_hooks.adapters import RANKS, adapters_of, load_adapters, lora_options

CONFIG = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"], "bias": "none"}


@pytest.fixture
def adapter(tmp_path):
    """adapter(name, **fields of its config) -> the entry of `lora_modules`, with its config."""

    def made(name="sql", **fields):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **fields}))
        return f"{name}={folder}"

    return made


def options(*modules, **given):
    return lora_options(adapters_of(modules), given)


@pytest.mark.parametrize(("rank", "held"), [(1, 1), (8, 8), (9, 16), (32, 32), (200, 256), (512, 512)])
def test_the_rank_is_the_adapters(adapter, rank, held):
    assert options(adapter("a", r=1), adapter("b", r=rank))["max_lora_rank"] == held


def test_a_rank_that_is_set_holds(adapter):
    assert options(adapter(r=32), max_lora_rank=64)["max_lora_rank"] == 64
    assert RANKS[-1] == 512


def test_the_engine_holds_all_adapters(adapter, monkeypatch):
    """Else a request would read the files of one that had to go."""
    entries = [adapter(name) for name in "abc"]
    for on_cpu, slots in ((True, 4), (False, 2)):
        monkeypatch.setattr(adapters.current_platform, "is_cpu", lambda on_cpu=on_cpu: on_cpu)
        made = options(*entries, max_loras=2, max_cpu_loras=2)
        assert (made["max_loras"], made["max_cpu_loras"]) == (slots, max(slots, 3))
    assert options() == {}


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"r": 0}, "adapter_config.json cannot be used: LoRA rank `r` must be a positive integer"),
        ({"r": "8"}, "adapter_config.json cannot be used"),
        ({"r": None}, "adapter_config.json cannot be used"),
    ],
)
def test_an_adapter_whose_rank_cannot_be_read_is_refused(adapter, fields, sentence):
    with pytest.raises(ModelError, match=f"the LoRA adapter 'sql'.*{sentence}"):
        options(adapter(**fields))


def test_files_that_are_missing(adapter, tmp_path):
    (tmp_path / "empty").mkdir()
    entry = adapter()
    assert options(entry)["max_lora_rank"] == 8, "the control"
    (tmp_path / "sql" / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"adapter_config\.json cannot be used"):
        options(entry)
    for path in (tmp_path / "empty", tmp_path / "nowhere"):
        with pytest.raises(ModelError, match=rf"has no adapter_config\.json in {path}"):
            options(f"sql={path}")


@pytest.mark.parametrize("entry", ["sql", "sql=", "=path", "{", '{"name": "sql"}', {"name": "sql"}, {"name": 1}, 3])
def test_an_entry_that_is_no_adapter(entry):
    with pytest.raises(SkimError, match="write name=path"):
        adapters_of([entry])


def test_names_are_told_apart(adapter):
    entry = adapter()
    with pytest.raises(SkimError, match="two adapters with the name 'sql'"):
        adapters_of([entry, entry])
    with pytest.raises(SkimError, match="the name of the model, 'sql'"):
        adapters_of([entry], ["base", "sql"])


def test_an_adapter_of_a_hub(hub, tmp_path, adapter):
    """The folder of the demo target is a repository of the hub, but no adapter; another name is not there."""
    with pytest.raises(ModelError, match=r"'sql': model demo/no: .* the hub shows no repository demo/no"):
        adapters_of(["sql=demo/no"], weights=False)
    with pytest.raises(ModelError, match=r"'sql' has no adapter_config\.json in demo/target"):
        adapters_of(["sql=demo/target"], weights=False)


class Engine:
    """An engine that refuses the adapters `bad`, as vLLM tells it. changes: what its ranks say of each adapter."""

    def __init__(self, bad=(), error=None, changes=(False, True)):
        self.loaded, self._bad, self._error, self._changes = [], bad, error, changes

    async def add_lora(self, request):
        if request.lora_name in self._bad:
            raise self._error
        self.loaded.append(request.lora_name)

    async def collective_rpc(self, method, args):
        return self._changes


async def test_all_adapters_are_loaded():
    engine = Engine()
    await load_adapters(engine, {name: SimpleNamespace(lora_name=name, lora_int_id=1) for name in "ab"})
    assert engine.loaded == ["a", "b"]


async def test_one_that_a_worker_refuses_is_one_sentence():
    asked = {"a": SimpleNamespace(lora_name="a")}
    failed = Exception("Call to add_lora method failed: expected target modules in\n{'q_proj'} but received ['c_attn']")
    with pytest.raises(ModelError, match=r"^the LoRA adapter 'a' cannot be loaded: expected .* received \['c_attn'\]$"):
        await load_adapters(Engine("a", failed), asked)
    with pytest.raises(EngineDeadError):
        await load_adapters(Engine("a", EngineDeadError()), asked)


async def test_one_that_changes_nothing_is_refused():
    """vLLM ignores it, and each answer would be the model's own."""
    asked = {"a": SimpleNamespace(lora_name="a", lora_int_id=1)}
    with pytest.raises(ModelError, match="'a' changes no layer of the model"):
        await load_adapters(Engine(changes=(False, False)), asked)
