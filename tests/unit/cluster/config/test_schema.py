"""Deployment files: valid settings, and the error sentence for invalid ones."""

import re
from pathlib import Path

import pytest
from pydantic import ValidationError

from cluster.config import schema
from cluster.config.load import as_yaml, config_from_flags, config_from_settings, load_config
from cluster.config.pools import TargetConfig
from router.options.request import PolicyOptions
from skim_common.errors import SkimError
from skim_common.models.source import is_hub_name

EXAMPLES = Path(__file__).parents[4] / "examples"
SMALLEST = "speculator: {model: small}\ntarget: {model: big}\n"


@pytest.fixture
def write(tmp_path):
    def write_file(text: str) -> Path:
        path = tmp_path / "skim.yaml"
        path.write_text(text)
        return path

    return write_file


def refusal(*args) -> str:
    with pytest.raises(SkimError) as caught:
        config_from_flags(*args)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_two_models_are_enough(write, tmp_path):
    config = load_config(write(SMALLEST))
    assert config.served_model_name == "big"
    assert config.target == TargetConfig(model=str(tmp_path / "big"))
    assert config.selection == PolicyOptions()
    assert (config.router.host, config.router.port, config.router.min_prompt_tokens) == ("127.0.0.1", 8000, 2000)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_valid_and_its_models_exist_or_lie_elsewhere(path):
    config = load_config(path)
    for pool in (config.speculator, config.target):
        elsewhere = config.spans_machines or is_hub_name(pool.model)
        assert elsewhere or (Path(pool.model) / "config.json").is_file()


def test_the_examples_are_these():
    stems = {path.stem for path in EXAMPLES.glob("*.yaml")}
    assert stems == {"demo", "hub-names", "llama-405b", "llama-70b-1b", "multi-node", "select-only"}


ALONE = "speculator: {model: small}\nrouter: {select_only: true}\n"


def test_a_speculator_alone(write, tmp_path):
    config = load_config(write(ALONE + "target: {engine_options: {api_key: [key]}}\n"))
    assert (config.served_model_name, list(config.pools)) == ("small", ["speculator"])
    assert config.target.model == str(tmp_path / "small")
    assert config.front_options == {"api_key": ["key"]}
    pinned = config.speculator.model_copy(update={"model": "owner/small@1"})
    assert config.with_pools({"speculator": pinned}).target.model == "owner/small@1"
    batch = "kubernetes: {image: skim, batch: {input: 's3://rows', output: 's3://answers'}}\n"
    assert load_config(write(SMALLEST + batch)).kubernetes.batch
    assert "kubernetes.batch: no target runs with router.select_only" in refusal(write(ALONE + batch), {})
    # The flag drops the target of a file.
    both = config_from_flags(write(SMALLEST), {"target": {}, "router.select_only": True})
    assert both == load_config(write(ALONE))


@pytest.mark.parametrize("target", ["{model: big}", "{replicas: 2}", "{engine_options: {enforce_eager: true}}"])
def test_a_target_that_would_not_run_is_refused(write, target):
    assert "no target runs with router.select_only" in refusal(write(f"{ALONE}target: {target}\n"), {})


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_a_shown_config_loads_again_to_an_equal_one(path, write):
    config = load_config(path)
    shown = as_yaml(config)
    assert load_config(write(shown)) == config
    assert "look_ahead: 8" in shown, "defaults are filled in"


def test_texts_of_all_kinds_are_shown_so_that_they_load_again(write):
    values = ["1e-5", "no", "null", "~", "a: b # c", "two\nlines\n", "grüße 😀", "", "0x10", "'", '"', "\t", "\u2028"]
    env = {f"V{i}": value for i, value in enumerate(values)}
    config = config_from_flags(write(SMALLEST), {"target.env": env, "target.engine_options": {"x": 1e-05, "y": [None]}})
    assert load_config(write(as_yaml(config))) == config
    assert config.target.env == env


def test_what_is_wrong_is_told_with_its_line(write):
    text = "speculator:\n  model: small\n  engin: vllm\ntarget:\n  replicas: 0\nrouter:\n  port: 70000\n"
    path = write(text)
    message = refusal(path, {})
    for part in (
        "line 3: speculator.engin: is not",
        "line 4: target.model: is missing",
        "line 5: target.replicas: ",
        "line 7: router.port: ",
    ):
        assert part in message
    assert "line" not in refusal(path, {"speculator": {}, "target": {"replicas": 0}, "router": {"port": 0}})


def test_the_line_is_not_that_of_a_flag(write):
    text = SMALLEST + "router:\n  port: 8000\n"
    assert "skim.yaml: router.port: " in refusal(write(text), {"router.port": -1})


def test_a_setting_is_given_once(write):
    message = refusal(write("target: {model: big}\nspeculator:\n  model: small\n  model: other\n"), {})
    assert "line 4: speculator.model: is already set in line 3" in message


def test_a_pool_that_scales_starts_within_its_bounds(write):
    def replicas(pool: str) -> int:
        return load_config(write(f"speculator: {{model: small, {pool}}}\ntarget: {{model: big}}\n")).speculator.replicas

    assert replicas("autoscaling: {min_replicas: 3, max_replicas: 5}") == 3
    assert replicas("autoscaling: {min_replicas: 0, max_replicas: 5}") == 1
    assert replicas("replicas: 4, autoscaling: {min_replicas: 3, max_replicas: 5}") == 4


def test_there_is_a_demo():
    assert load_config(EXAMPLES / "demo.yaml").served_model_name == "skim-demo"


def test_model_folders_are_relative_to_the_file(write, tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    path = write("speculator: {model: ../small}\ntarget: {model: /models/big}\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(path)
    assert config.speculator.model == str(tmp_path.parent / "small")
    assert config.target.model == "/models/big"
    relative = load_config(Path("..") / path.name)
    assert relative == config


def test_flags_win_over_the_file(write, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_from_flags(
        write(SMALLEST + "selection: {keep_rate: 0.5, look_ahead: 4}\n"),
        {"target.model": Path("other"), "selection.keep_rate": 0.1, "selection.look_ahead": None, "router.port": 9000},
    )
    assert config.target.model == str(tmp_path / "other")
    assert (config.selection.keep_rate, config.selection.look_ahead, config.router.port) == (0.1, 4, 9000)


def test_flags_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = config_from_flags(None, {"target.model": Path("big"), "speculator.model": Path("small")})
    assert config.speculator.model == str(tmp_path / "small")
    assert "target: is missing" in refusal(None, {"speculator.model": Path("small")})


def test_numbers_are_fine_as_environment_variables(write):
    config = load_config(write("speculator: {model: small, env: {A: 1, B: 0.5}}\ntarget: {model: big}\n"))
    assert config.speculator.env == {"A": "1", "B": "0.5"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("target: {model: big}", "speculator: is missing"),
        ("target: {}\nspeculator: {model: small}", "target.model: is missing"),
        ("target: {model: ''}\nspeculator: {model: small}", "target.model: "),
        ("target: big\nspeculator: {model: small}", "target: "),
        (SMALLEST + "routr: {}", "routr: is not a setting; did you mean router?"),
        (SMALLEST + "router: {prot: 1}", "router.prot: is not a setting; did you mean port?"),
        (SMALLEST + "router: {zzz: 1}", "router.zzz: is not a setting; the settings here are host, port"),
        (SMALLEST + "selection: {keep_rat: 1}", "selection.keep_rat: is not a setting; did you mean keep_rate?"),
        (SMALLEST + "selection: {keep_rate: 0}", "selection.keep_rate: must be auto or a number > 0 and <= 1, not 0"),
        (SMALLEST + "router: {port: 70000}", "router.port: should be less than or equal to 65535, not 70000"),
        (SMALLEST + "router: {port: high}", "router.port: should be a valid integer"),
        (SMALLEST + "router: {keep_alive_s: -1}", "router.keep_alive_s: should be greater than or equal to 0"),
        (
            "target: {model: big, engine_options: {sse-keep-alive-interval: 5}}\nspeculator: {model: s}",
            "target: engine_options.sse_keep_alive_interval is set by router.keep_alive_s: set that instead",
        ),
        (
            "target: {model: big, engine_options: {data_parallel_size: 2}}\nspeculator: {model: s}",
            "target: engine_options.data_parallel_size is not taken: each replica is one engine",
        ),
        (
            "target: {model: big}\nspeculator: {model: s, engine_options: {api_key: [k]}}",
            "speculator: engine_options.api_key is for the HTTP front: set it in target.engine_options",
        ),
        (
            "target: {model: big, engine_options: {speculative_config: {method: ngram}}}\nspeculator: {model: s}",
            "target: engine_options.speculative_config.method is set by decode.method: set that instead",
        ),
        (SMALLEST + "router: {select_timeout_s: .inf}", "router.select_timeout_s: should be a finite number"),
        ("target: {model: big, tensor_parallel: 0}\nspeculator: {model: s}", "target.tensor_parallel: should be gr"),
        ("target: {model: big, replicas: 0}\nspeculator: {model: s}", "target.replicas: should be greater than or"),
        ("target: {model: big, engine: tgi}\nspeculator: {model: s}", "target.engine: must be vllm, mock"),
        ("target: {model: big, env: {A: [1]}}\nspeculator: {model: s}", "target.env.A: should be a valid string"),
        ("target: {model: [", "line 1 is not valid YAML"),
        ("target: !!python/object:os.system {}", "is not valid YAML"),
        (
            "target: {model: big, prefill: {replicas: 2}}\nspeculator: {model: s}",
            "target: prefill is a pool of a split target: set topology to split",
        ),
        (
            "target: {model: big, topology: split, prefill: {replica: 2}}\nspeculator: {model: s}",
            "target.prefill.replica: is not a setting; did you mean replicas?",
        ),
        (
            "target: {model: big, replicas: 9, autoscaling: {max_replicas: 3}}\nspeculator: {model: s}",
            "target: replicas must be between autoscaling.min_replicas and autoscaling.max_replicas",
        ),
        (
            "target: {model: big, tensor_parallel: 8, gpus_per_replica: 4}\nspeculator: {model: s}",
            "target: gpus_per_replica must be at least tensor_parallel",
        ),
        (
            "target: {model: big, nodes_per_replica: 2, tensor_parallel: 3}\nspeculator: {model: s}",
            "target: nodes_per_replica 2 must divide the 3 ranks of a replica",
        ),
        (
            "target: {model: b, nodes_per_replica: 2, tensor_parallel: 4, gpus_per_replica: 8}\nspeculator: {model: s}",
            "target: gpus_per_replica must be 4 or left out with nodes_per_replica 2: each rank takes one GPU",
        ),
        (
            "target: {model: b, nodes_per_replica: 2, tensor_parallel: 2, env: {VLLM_HOST_IP: a}}\n"
            "speculator: {model: s}",
            "target: env sets VLLM_HOST_IP, which differs between the nodes of a replica",
        ),
        (
            "target: {model: big, engine_options: {pipeline_parallel_size: 2}}\nspeculator: {model: s}",
            "target: engine_options.pipeline_parallel_size is set by pipeline_parallel",
        ),
        (
            "target: {model: big, topology: split, prefill: {pipeline_parallel: 2}}\nspeculator: {model: s}",
            "target: a split target cannot have nodes_per_replica or pipeline_parallel above 1",
        ),
        (
            "target: {model: big}\nspeculator: {model: s, nodes_per_replica: 2, tensor_parallel: 2}",
            "speculator: nodes_per_replica and pipeline_parallel must be 1: a speculator is small",
        ),
        (
            "target: {model: big, pipeline_parallel: 2}\nspeculator: {model: s}",
            "decode.method remote does not work with pipeline_parallel 2",
        ),
        (
            "target: {model: big, gpus_per_replica: 0.5}\nspeculator: {model: s}",
            "target: gpus_per_replica 0.5 shares a GPU: set engine_options.gpu_memory_utilization to the share",
        ),
        (
            "target: {model: big, topology: split, prefill: {gpus_per_replica: 0.25}}\nspeculator: {model: s}",
            "target: gpus_per_replica 0.25 shares a GPU: set engine_options.gpu_memory_utilization to the share",
        ),
        (
            "target: {model: big, autoscaling: {min_replicas: 3, max_replicas: 2}}\nspeculator: {model: s}",
            "target.autoscaling: max_replicas must be at least min_replicas",
        ),
        ("target: {model: big, autoscaling: {min_replica: 3}}\nspeculator: {model: s}", "did you mean min_replicas?"),
        ("target: {model: big, resources: {a: 0}}\nspeculator: {model: s}", "target.resources.a: should be greater"),
        ("target: {model: big, resources: {GPU: 1}}\nspeculator: {model: s}", "target.resources: GPU is no custom"),
        (
            "target: {model: big, env: {VLLM_CPU_KVCACHE_SPACE: 4GB}}\nspeculator: {model: s}",
            "target.env: VLLM_CPU_KVCACHE_SPACE must be a whole number of GiB, not 4GB",
        ),
        ("target: {model: big, node_labels: {a: '!b'}}\nspeculator: {model: s}", "target.node_labels.a: "),
        ("target: {model: big, node_labels: {a b: c}}\nspeculator: {model: s}", "target.node_labels.a b"),
        (SMALLEST + "kubernetes: {name: Skim}", "kubernetes.name: "),
        (SMALLEST + "kubernetes: {target: {memory: lots}}", "kubernetes.target.memory: "),
        (SMALLEST + "kubernetes: {targt: {}}", "did you mean target?"),
        (SMALLEST + "observability: {traces: {}}", "observability.traces.endpoint: is missing"),
        (SMALLEST + "observability: {traces: {endpoint: collector}}", "traces.endpoint: must be a URL such as http"),
        (SMALLEST + "observability: {traces: {endpoint: 'grpc://c:4317'}}", "endpoint: must be a URL such as http"),
        (SMALLEST + "observability: {traces: {endpoint: 'http://c:x'}}", "endpoint: must have a port between"),
        (SMALLEST + "observability: {traces: {endpoint: 'http://c/v1/traces'}}", "must end before /v1/traces"),
        (
            SMALLEST + "observability: {traces: {endpoint: 'http://c', sample_ratio: 2}}",
            "observability.traces.sample_ratio: should be less than or equal to 1, not 2",
        ),
        ("", "must hold settings"),
        ("- target", "must hold settings"),
    ],
)
def test_what_a_file_may_not_say(write, text, sentence):
    path = write(text)
    message = refusal(path, {})
    assert sentence in message
    assert str(path) in message


def test_everything_wrong_is_told_at_once(write):
    message = refusal(write("target: {replicas: 0}\nspeculator: {model: small, engin: vllm}\n"), {})
    for part in ("target.model: is missing", "target.replicas", "speculator.engin", "did you mean engine?"):
        assert part in message


def test_wrong_flags(write):
    message = refusal(write(SMALLEST), {"router.port": -1})
    assert "router.port: should be greater than or equal to 1, not -1" in message


def test_a_flag_into_a_section_of_the_wrong_type(write):
    assert "router: " in refusal(write(SMALLEST + "router: 8000\n"), {"router.port": 9000})


def test_unusable_files(tmp_path):
    assert "does not exist" in refusal(tmp_path / "no.yaml", {})
    assert "cannot be read" in refusal(tmp_path, {})
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "not UTF-8" in refusal(tmp_path / "binary.yaml", {})


def test_a_config_does_not_change(write):
    config = load_config(write(SMALLEST))
    with pytest.raises(ValidationError):
        config.router.port = 1


def test_pools_with_shares_of_the_gpu_memory_share_a_gpu(write):
    share = "gpus_per_replica: 0.5, engine_options: {gpu_memory_utilization: 0.4}"
    split = "topology: split, prefill: {gpus_per_replica: 0.25}"
    config = load_config(write(f"target: {{model: big, {share}, {split}}}\nspeculator: {{model: s, {share}}}"))
    assert [pool.gpus_per_replica for pool in config.pools.values()] == [0.5, 0.5, 0.25]


def test_the_prefilling_pool_has_the_adapters_of_the_target(write):
    """A request for one is read there, whatever else differs."""
    own = "prefill: {engine_options: {max_num_seqs: 4}}"
    target = f"model: big, topology: split, engine_options: {{lora_modules: [a=/a], tool_call_parser: hermes}}, {own}"
    config = load_config(write(f"target: {{{target}}}\nspeculator: {{model: s}}"))
    assert config.target.prefill.engine_options == {
        "max_num_seqs": 4,
        "lora_modules": [{"name": "a", "path": "/a"}],
    }


def test_the_prefilling_pool_is_like_the_target_but_for_its_size(write):
    target = "model: big, tensor_parallel: 4, replicas: 3, topology: split, env: {A: 1}"
    prefill = "prefill: {replicas: 2, tensor_parallel: 2}"
    config = load_config(write(f"target: {{{target}, {prefill}}}\nspeculator: {{model: s}}"))
    pools = config.pools
    assert list(pools) == ["speculator", "target", "prefill"]
    assert pools["prefill"].model == pools["target"].model
    assert (pools["prefill"].env, pools["prefill"].tensor_parallel, pools["prefill"].replicas) == ({"A": "1"}, 2, 2)
    placed = config.placed(on_gpus=True).pools
    assert [pool.gpus_per_replica for pool in placed.values()] == [1, 4, 2]
    alone = load_config(write("target: {model: big, replicas: 3, topology: split}\nspeculator: {model: s}"))
    assert alone.pools["prefill"].replicas == 1


def test_a_hub_name_stays_as_it_is(tmp_path, monkeypatch):
    """Only a folder that exists wins: of a file beside the file, of a flag in the working directory."""
    (tmp_path / "here" / "owner" / "small").mkdir(parents=True)
    file = tmp_path / "here" / "config.yaml"
    file.write_text("target: {model: owner/big@v1}\nspeculator: {model: owner/small}\n")
    monkeypatch.chdir(tmp_path)
    config = load_config(file)
    assert config.target.model == "owner/big@v1"
    assert config.served_model_name == "owner/big"
    assert config.speculator.model == str(tmp_path / "here" / "owner" / "small")
    config = config_from_flags(None, {"target.model": Path("owner/big"), "speculator.model": Path("owner/small")})
    assert [config.target.model, config.speculator.model] == ["owner/big", "owner/small"]


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"router": {"audit_share": 0.5, "catch_up": "off"}}, "audit_share has no effect with router.catch_up: off"),
        ({"router": {"catch_up": "always", "affinity": False}}, "router.catch_up has no effect with router.affinity"),
        ({"router": {"catch_up": "always", "speculative_prefill": False}}, "with router.speculative_prefill: false"),
        ({"router": {"audit_share": 0.5}, "target": {"engine_options": {"enable_prefix_caching": False}}},
         "with target.engine_options.enable_prefix_caching: false"),
        ({"router": {"select_only": True, "migration": False}}, "migration has no effect with router.select_only"),
        ({"router": {"select_only": True}, "decode": {"adaptive": False}}, "decode.adaptive has no effect"),
        ({"decode": {"method": "none", "max_draft_tokens": 2}}, "decode.max_draft_tokens has no effect with decode.m"),
        ({"decode": {"method": "ngram", "draft_context": "full"}}, "decode.draft_context has no effect with decode"),
        ({"decode": {"method": "none"}, "channel": {"port": 9000}}, "channel.port has no effect with decode.method"),
        ({"selection": {"selector": "lexical", "layers": "all"}}, "selection.layers has no effect with selection.sel"),
        ({"selection": {"scoring": "heads", "look_ahead": 2}}, "selection.look_ahead has no effect with selection.sc"),
        ({"selection": {"read": "whole", "window_tokens": 512}}, "selection.window_tokens has no effect with"),
        ({"speculator": {"autoscaling": {"downscale_to_zero_delay_s": 9}}}, "above 0: leave one of them out"),
    ],
)  # fmt: skip
def test_a_setting_that_another_leaves_without_effect_is_refused(settings, told):
    pools = {name: {"model": "m", **settings.get(name, {})} for name in ("speculator", "target")}
    if settings.get("router", {}).get("select_only"):
        del pools["target"]
    with pytest.raises(SkimError, match=re.escape(told)):
        config_from_settings({**settings, **pools})


def test_each_setting_of_the_table_is_one():
    config = config_from_settings({"speculator": {"model": "m"}, "target": {"model": "m"}})
    for condition, settings in schema.WITHOUT_EFFECT.items():
        conditions = condition.replace(": ", " ").split()[:1]
        for setting in [*conditions, *settings.split()]:
            schema._value(config, setting)


def test_what_is_off_is_no_setting_without_effect():
    pools = {"speculator": {"model": "m"}, "target": {"model": "m"}}
    assert config_from_settings({**pools, "router": {"catch_up": "off", "affinity": False}})
