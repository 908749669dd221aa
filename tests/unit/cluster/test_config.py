"""Deployment files: what they may say, and the sentence for what they may not."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from cluster.config import PoolConfig, config_from_flags, load_config
from kv_transfer.errors import SkimError
from kv_transfer.messages import SelectionOptions

EXAMPLES = Path(__file__).parents[3] / "examples"
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
    assert config.target == PoolConfig(model=str(tmp_path / "big"))
    assert config.selection == SelectionOptions()
    assert (config.router.host, config.router.port, config.router.min_prompt_tokens) == ("127.0.0.1", 8000, 1024)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.name)
def test_every_example_is_valid_and_its_models_exist(path):
    config = load_config(path)
    for pool in (config.speculator, config.target):
        assert (Path(pool.model) / "config.json").is_file()


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
        (SMALLEST + "selection: {keep_rate: 0}", "selection.keep_rate: should be greater than 0, not 0"),
        (SMALLEST + "selection: {pool_kernel: 4}", "selection.pool_kernel: must be odd"),
        (SMALLEST + "router: {port: 70000}", "router.port: should be less than or equal to 65535, not 70000"),
        (SMALLEST + "router: {port: high}", "router.port: should be a valid integer"),
        (SMALLEST + "router: {select_timeout_s: .inf}", "router.select_timeout_s: should be a finite number"),
        ("target: {model: big, tensor_parallel: 0}\nspeculator: {model: s}", "target.tensor_parallel: should be gr"),
        ("target: {model: big, replicas: 0}\nspeculator: {model: s}", "target.replicas: should be greater than or"),
        ("target: {model: big, engine: tgi}\nspeculator: {model: s}", "target.engine: should be 'vllm', 'transf"),
        ("target: {model: big, env: {A: [1]}}\nspeculator: {model: s}", "target.env.A: should be a valid string"),
        ("target: {model: [", "line 1 is not valid YAML"),
        ("target: !!python/object:os.system {}", "is not valid YAML"),
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
