"""The compared systems have equal options."""

from pathlib import Path

from benchmarks.harness import servers
from skim_common.environment import CORES, KEPT_HEAP


def test_a_stock_server_has_the_cores_and_the_memory_that_skims_engines_have(monkeypatch):
    told = {}
    monkeypatch.setattr(servers, "dense_server", lambda model, name, options, environment: told.update(environment))
    servers.stock_server(Path("target"), 4096, 8192)
    assert told.items() >= (servers.engine_environment() | KEPT_HEAP).items()
    assert CORES in told
    assert told["VLLM_PLUGINS"] == "", "a stock server loads no plug-in"


def test_engines_can_have_cores_of_their_own(monkeypatch):
    told = {}
    monkeypatch.setattr(servers, "dense_server", lambda model, name, options, environment: told.update(environment))
    servers.stock_server(Path("target"), 4096, 8192, cores=[3, 1])
    assert told[CORES] == "1,3"
    config = servers.skim_config(Path("t"), Path("s"), 4096, 8192, cores={"target": [3], "speculator": [1]})
    assert [pool.env[CORES] for pool in (config.target, config.speculator)] == ["3", "1"]


def test_a_head_profile_is_the_speculators():
    config = servers.skim_config(Path("t"), Path("s"), 4096, 8192, head_profile=Path("heads.json"))
    assert config.speculator.engine_options["head_profile"] == str(Path("heads.json").absolute())
    assert "head_profile" not in config.target.engine_options
    assert "head_profile" not in servers.skim_config(Path("t"), Path("s"), 4096, 8192).speculator.engine_options
