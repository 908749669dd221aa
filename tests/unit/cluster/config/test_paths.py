"""Paths in `engine_options` start at the file that names them, in all forms of the options."""

import json
from pathlib import Path

import pytest

from cluster.config.load import load_config
from cluster.config.vllm_options import PATHS, hub_names, with_located_paths, with_paths

HERE = Path("/here")


def nested(name, value):
    """The option of `name`, a key of PATHS, with this path."""
    option, *fields = name.split(".")
    for field in reversed(fields):
        value = {field: value}
    return {option: [value] if option == "lora_modules" else value}


def values(options):
    """The paths in the options, by their keys in PATHS."""
    found = {}
    with_paths(options, lambda name, path: found.setdefault(name, path))
    return found


@pytest.mark.parametrize("name", PATHS)
def test_each_path_starts_at_the_folder(name):
    located = with_located_paths(nested(name, "sub/../x.y"), HERE)
    assert values(located) == {name: "/here/x.y"}
    assert values(with_located_paths(nested(name, "~/x"), HERE)) == {name: str(Path("~/x").expanduser())}
    assert with_located_paths(located, Path("/other")) == located


@pytest.mark.parametrize(
    "modules",
    [
        ["sql=a"],
        "sql=a",
        [{"name": "sql", "path": "a"}],
        {"name": "sql", "path": "a"},
        ['{"name": "sql", "path": "a"}'],
        '{"name": "sql", "path": "a"}',
        '[{"name": "sql", "path": "a"}]',
    ],
)
def test_all_forms_of_adapters_become_one(modules):
    assert with_located_paths({"lora_modules": modules}, HERE) == {"lora_modules": [{"name": "sql", "path": "/here/a"}]}


def test_adapters_keep_their_other_fields_and_hub_names():
    modules = ['{"name": "a", "path": "x", "base_model_name": "b"}', "hub=owner/adapter", "wrong", "{wrong"]
    assert with_located_paths({"lora_modules": modules}, HERE) == {
        "lora_modules": [
            {"name": "a", "path": "/here/x", "base_model_name": "b"},
            {"name": "hub", "path": "owner/adapter"},
            "wrong",
            "{wrong",
        ]
    }


def test_an_option_may_be_json_text():
    text = json.dumps({"model": "./c", "method": "eagle"})
    assert with_located_paths({"speculative_config": text}, HERE) == {
        "speculative_config": {"model": "/here/c", "method": "eagle"}
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("chat_template", "{{ messages }}"),
        ("chat_template", "a/b\n"),
        ("chat_template", "template_chatml.jinja"),
        ("generation_config", "auto"),
        ("generation_config", "vllm"),
        ("generation_config", "owner/name"),
        ("hf_config_path", "owner/name@v1"),
        ("draft_model", "owner/name"),
        ("tool_parser_plugin", ""),
        ("chat_template", None),
    ],
)
def test_what_is_no_path_stays(name, value):
    assert with_located_paths({name: value}, HERE) == {name: value}


def test_a_file_of_the_folder_wins(tmp_path):
    (tmp_path / "template_chatml.jinja").touch()
    (tmp_path / "owner" / "name").mkdir(parents=True)
    options = {"chat_template": "template_chatml.jinja", "draft_model": "owner/name", "tool_parser_plugin": "o/p.py"}
    assert with_located_paths(options, tmp_path) == {name: str(tmp_path / path) for name, path in options.items()}


def test_hub_names_of_options():
    names = {name: f"owner/{name.partition('.')[0]}" for name, kind in PATHS.items() if kind == "model"}
    options = {}
    for name, value in names.items():
        options |= nested(name, value)
    assert hub_names(options) == list(names.values())
    assert hub_names({"chat_template": "owner/name", "tool_parser_plugin": "a/b", "draft_model": "/a/b"}) == []


def test_paths_of_a_deployment_file(tmp_path):
    """The files of the draft channel, too."""
    file = tmp_path / "skim.yaml"
    file.write_text(
        "target: {model: big, engine_options: {lora-modules: [sql=a], chat-template: c.jinja}}\n"
        "speculator: {model: small, engine_options: {head_profile: h.json}}\n"
        "channel: {tls_cert: c.pem, tls_key: k.pem, tls_ca: /ca.pem}\n"
    )
    config = load_config(file)
    assert config.target.engine_options == {
        "lora_modules": [{"name": "sql", "path": f"{tmp_path}/a"}],
        "chat_template": f"{tmp_path}/c.jinja",
    }
    assert config.speculator.engine_options == {"head_profile": f"{tmp_path}/h.json"}
    files = config.channel.tls_cert, config.channel.tls_key, config.channel.tls_ca
    assert files == (f"{tmp_path}/c.pem", f"{tmp_path}/k.pem", "/ca.pem")
