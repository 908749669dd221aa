"""Every flag of `vllm serve`: where it goes, and that front and target read it as a stock server does.

The table is made from vLLM's own parser, so that a flag of a new vLLM fails until it has a place.
"""

import argparse
import colorsys
import json
from dataclasses import fields
from types import SimpleNamespace

import pytest
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
from vllm.v1.structured_output import StructuredOutputManager

from cluster.config.load import config_from_flags
from cluster.config.vllm_options import BOTH, FRONT, REFUSED, SETTINGS, for_engine, for_front, settings_of_flags
from router.vllm_front.app import ServedModel, front_config
from router.vllm_front.flags import arguments, given_flags
from skim_common.errors import SkimError
from tests.reference.thinking import thinking_model
from tests.unit.conftest import MODELS
from vllm_hooks.engine import OWN_OPTIONS, _as_configs, check_options, engine_config

TARGET = str(MODELS / "target")
COMMANDS = {"config", "help", "model_tag"}
"""What the parser takes and is no option: the file of options, --help, and the model."""

SAMPLES = {
    "allowed_headers": ['["x-a"]'],
    "allowed_methods": ['["GET"]'],
    "allowed_origins": ['["https://a"]'],
    "api_key": ["k1", "k2"],
    "chat_template": ["{{ messages }}"],
    "compilation_config": ['{"mode": 0, "max_cudagraph_capture_size": 8k}'],
    "default_chat_template_kwargs": ['{"enable_thinking": false}'],
    "hf_overrides": ['{"rope_theta": 5}'],
    "ir_op_priority": ['{"rms_norm": ["native"]}'],
    "kv_transfer_config": ['{"engine_id": "e", "kv_connector": "OffloadingConnector", "kv_role": "kv_both"}'],
    "limit_mm_per_prompt": ['{"image": 2}'],
    "lora_modules": ["a=b"],
    "max_num_batched_tokens": ["8k"],
    "middleware": ["json.JSONDecoder"],
    "mm_encoder_attn_backend": ["TORCH_SDPA"],
    "attention_backend": ["CPU_ATTN"],
    "model": [TARGET],
    "override_generation_config": ['{"temperature": 0.5}'],
    "prefix_cache_retention_interval": ["64"],
    "quantization": ["fp8_per_tensor"],
    "quantization_config": ['{"ignore": ["a"]}'],
    "reasoning_config": ['{"reasoning_start_str": "a", "reasoning_end_str": "b"}'],
    "reasoning_parser": ["qwen3"],
    "reasoning_parser_plugin": [colorsys.__file__],
    "speculative_config": ['{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}'],
    "structured_outputs_config": ['{"backend": "guidance"}'],
    "tokenizer": [TARGET],
    "tool_call_parser": ["hermes"],
    "tool_parser_plugin": [colorsys.__file__],
    "tool_server": ["localhost:1"],
}  # fmt: skip
"""Words of options for which no word of GUESSES would do, or none that says much."""

GUESSES = ("7", "0.5", '{"a": 7}', "{}", "word")


def flags():
    """vLLM's actions with flags, by the name of the option."""
    parser = make_arg_parser(FlexibleArgumentParser())
    return {one.dest: one for one in parser._actions if one.dest not in COMMANDS}


ACTIONS = flags()
ENGINE = {field.name for field in fields(AsyncEngineArgs)}


def words_of(name, action):
    """Words that set the option to something else than its default, if it has choices."""
    if action.nargs == 0:
        return [action.option_strings[0]]
    if name in SAMPLES:
        return [action.option_strings[0], *SAMPLES[name]]
    if action.choices:
        return [action.option_strings[0], next(str(c) for c in action.choices if c not in (action.default, "None"))]
    for guess in GUESSES:
        try:
            action.type and action.type(guess)
        except (ValueError, TypeError, argparse.ArgumentTypeError):
            continue
        return [action.option_strings[0], guess]
    raise AssertionError(f"--{name}: give a sample")


def stock_args(line):
    """The arguments of a stock `vllm serve`."""
    root = FlexibleArgumentParser(prog="vllm")
    make_arg_parser(root.add_subparsers(dest="subparser").add_parser("serve"))
    args = root.parse_args(["serve", *line])
    args.model = args.model_tag or args.model
    return args


@pytest.fixture(scope="module")
def every():
    """Each flag once: the words, and what Skim reads of them, as it travels."""
    line = [word for name, action in ACTIONS.items() for word in words_of(name, action)]
    line.remove("--data-parallel-multi-port-external-lb")  # vLLM checks it against its fellows
    line.remove("--enable-per-request-metrics")  # vLLM refuses it beside --disable-log-stats
    given, _ = given_flags(line)
    return line, json.loads(json.dumps(given))


def test_every_flag_has_a_place():
    """The count of all flags, of those that Skim takes, and of those that it refuses with a reason."""
    named = FRONT | BOTH | SETTINGS.keys() | REFUSED.keys()
    assert named - ACTIONS.keys() == set(), "a table names what vLLM does not have"
    assert len(named) == sum(map(len, (FRONT, BOTH, SETTINGS, REFUSED))), "two tables name one option"
    assert BOTH <= ENGINE
    alone = ACTIONS.keys() - named
    assert alone - {"spec_method", "spec_model", "spec_tokens"} <= ENGINE, "the engine has no such option"
    assert alone.isdisjoint(OWN_OPTIONS)
    check_options("target", dict.fromkeys(alone | BOTH))
    assert (len(ACTIONS), len(FRONT), len(BOTH), len(alone), len(SETTINGS), len(REFUSED)) == ALL


ALL = (291, 39, 25, 149, 15, 63)


def test_the_documentation_has_the_same_counts():
    text = (MODELS.parent / "docs" / "options.md").read_text()
    assert f"vLLM 0.29 has {ALL[0]} flags" in text
    assert all(f"\n| {count} | " in text for count in ALL[1:])


def test_a_refusal_says_what_to_do():
    for name in REFUSED:
        with pytest.raises(SkimError, match=rf"^--{name.replace('_', '-')} is not taken: ") as refused:
            settings_of_flags({name: "x"}, "target")
        assert any(advice in str(refused.value) for advice in ("leave it out", "set ", "name the model", "are set by"))
        assert settings_of_flags({name: "x"}, "target", frozenset({name})) == {}
        assert settings_of_flags({name: False}, "target") == {}


def test_settings_of_skim_stand_for_flags(tmp_path):
    """Each is in the deployment that the command line makes."""
    (tmp_path / "cert").write_text("")
    line = ["/t", "-tp", "2", "--shutdown-timeout", "5", "--served-model-name", "a", "b", "--host", "1.2.3.4"]
    line += ["--port", "9", "-asc", "3", "--sse-keep-alive-interval", "4", "--spec-method", "draft_model"]
    line += ["--spec-tokens", "6", "--spec-model", "/draft", "--ssl-certfile", "/c", "--ssl-keyfile", "/k"]
    settings = settings_of_flags(given_flags(line)[0], "target")
    config = config_from_flags(None, {"target.model": "/t", "speculator.model": "/s", **settings})
    assert (config.target.tensor_parallel, config.target.drain_timeout_s) == (2, 5)
    assert (config.served_model_name, config.model_aliases) == ("a", ("b",))
    router = config.router
    assert (router.host, router.port, router.replicas, router.keep_alive_s) == ("1.2.3.4", 9, 3, 4)
    assert (router.tls_cert, router.tls_key) == ("/c", "/k")
    assert (config.decode.method, config.decode.max_draft_tokens) == ("draft_model", 6)
    assert config.target.engine_options == {"draft_model": "/draft"}
    joined = ["--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}']
    settings = settings_of_flags(given_flags(joined)[0], "target")
    assert settings == {
        "decode.method": "ngram",
        "decode.max_draft_tokens": 3,
        "target.engine_options.speculative_config": {"prompt_lookup_max": 4},
    }
    with pytest.raises(SkimError, match="without its method"):
        settings_of_flags({"spec_model": "/draft"}, "target")


def test_the_front_reads_each_of_its_options_as_stock(every):
    """What travels is plain JSON; the router's parser makes of it what a stock server's makes of the words."""
    line, given = every
    stock, options = stock_args(line), for_front(given)
    assert options.keys() == FRONT | BOTH
    ours = arguments(options)
    differing = {name for name in options if getattr(ours, name) != getattr(stock, name)}
    assert differing == set()
    default = stock_args([])
    same = {name for name in options if getattr(ours, name) == getattr(default, name)}
    assert same == {name for name in options if ACTIONS[name].nargs == 0 and ACTIONS[name].default is True}


def test_options_that_are_off_are_off_at_the_front():
    """As a person writes them, and as YAML does."""
    on = [f for name in FRONT | BOTH for f in ACTIONS[name].option_strings if f.startswith("--no-")]
    given, _ = given_flags(on)
    assert len(given) == len(on)
    assert set(given.values()) == {False}
    ours, stock = arguments(given), stock_args(on)
    assert {name for name in given if getattr(ours, name) != getattr(stock, name)} == set()


def test_the_engine_reads_each_of_its_options_as_stock(every):
    line, given = every
    stock = AsyncEngineArgs.from_cli_args(stock_args(line))
    options = {
        n: v for n, v in for_engine(given, "vllm").items() if n in ENGINE and n not in SETTINGS.keys() | REFUSED.keys()
    }
    assert options.keys() >= BOTH
    ours = AsyncEngineArgs(model=TARGET, **_as_configs(options))
    differing = {name for name in options if getattr(ours, name) != getattr(stock, name)}
    assert differing == set()


READ_BY_BOTH = {
    "--trust-remote-code": lambda c: c.model_config.trust_remote_code,
    "--dtype float32": lambda c: c.model_config.dtype,
    "--tokenizer-mode hf": lambda c: c.model_config.tokenizer_mode,
    "--config-format hf": lambda c: c.model_config.config_format,
    '--hf-overrides {"rms_norm_eps":0.5}': lambda c: c.model_config.hf_text_config.rms_norm_eps,
    "--max-logprobs 31": lambda c: c.model_config.max_logprobs,
    "--generation-config vllm": lambda c: c.model_config.get_diff_sampling_param(),
    '--override-generation-config {"temperature":0.25}': lambda c: c.model_config.override_generation_config,
    "--model-impl vllm": lambda c: c.model_config.model_impl,
    "--allowed-local-media-path /tmp": lambda c: c.model_config.allowed_local_media_path,
    "--allowed-media-domains a.example": lambda c: c.model_config.allowed_media_domains,
    '--structured-outputs-config {"backend":"guidance"}': lambda c: c.structured_outputs_config.backend,
    "--reasoning-parser deepseek_r1": lambda c: c.structured_outputs_config.reasoning_parser,
    '--reasoning-config {"reasoning_start_str":"a","reasoning_end_str":"b"}': (
        lambda c: (
            c.reasoning_config
            and (c.reasoning_config.reasoning_start_token_ids, c.reasoning_config.reasoning_end_token_ids)
        )
    ),
}
"""Words of a command line, and what of vLLM's configuration they set."""


@pytest.fixture(scope="module")
def thinking(tmp_path_factory):
    return str(thinking_model("target", tmp_path_factory.mktemp("models")))


def configs(folder, line):
    """vLLM's configurations for these words: a stock server's, the front's and the target's of Skim."""
    given = json.loads(json.dumps(given_flags(line)[0]))
    settings = settings_of_flags(given, "target")
    config = config_from_flags(None, {"target.model": folder, "speculator.model": folder, **settings})
    stock = AsyncEngineArgs.from_cli_args(stock_args(["--model", folder, *line])).create_engine_config()
    served = ServedModel(folder, "root", ("name",), stock.model_config.max_model_len, config.front_options)
    return {
        "stock": stock,
        "front": front_config(served)[1],
        "target": engine_config("refused", model=folder, **config.target.options_of_engine),
    }


def test_front_and_target_are_configured_as_stock(thinking):
    """All at once; each option is seen to change what it sets."""
    plain = configs(thinking, ["--max-model-len", "4k"])
    line = [word for words in READ_BY_BOTH for word in words.split(" ")]
    made = configs(thinking, ["--max-model-len", "4k", *line])
    for words, read in READ_BY_BOTH.items():
        values = {name: read(config) for name, config in made.items()}
        assert values["front"] == values["target"] == values["stock"], words
        assert read(plain["stock"]) != values["stock"], words


@pytest.mark.parametrize("written", ["vllm", "yaml"])
def test_the_target_knows_the_reasoning_that_the_front_parses(thinking, written):
    """Else a schema would bind the reasoning: `should_fill_bitmask` says for a request whether it binds already."""
    line = ["--reasoning-parser", "qwen3", "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    if written == "vllm":
        target = configs(thinking, line)["target"]
    else:
        options = {"reasoning_parser": "qwen3"}
        settings = {"target.engine_options": options, "target.model": thinking, "speculator.model": thinking}
        target = engine_config("x", model=thinking, **config_from_flags(None, settings).target.options_of_engine)
    assert binds_at_once(target) is False
    assert binds_at_once(engine_config("x", model=thinking)) is True, "the control"


def binds_at_once(config):
    """Whether a structured output binds from the first token, before `</think>`."""
    asked = SimpleNamespace(reasoning_ended=None, reasoner=None, reasoning_parser_kwargs=None)
    request = SimpleNamespace(structured_output_request=asked, prompt_token_ids=[1, 2, 3], use_structured_output=True)
    return bool(StructuredOutputManager(config).should_fill_bitmask(request))


GUIDES = [
    # docs.vllm.ai, Reasoning Outputs: a model that thinks and calls tools
    "Qwen/QwQ-32B --reasoning-parser deepseek_r1 --enable-auto-tool-choice --tool-call-parser hermes",
    # docs.vllm.ai, OpenAI-Compatible Server: a key, and a chat template
    "NousResearch/Meta-Llama-3-8B-Instruct --dtype auto --api-key token-abc123 --chat-template {template}",
    # docs.vllm.ai, LoRA Adapters, with LoRA off
    "meta-llama/Llama-3.2-3B-Instruct --no-enable-lora --max-loras 4 --max-lora-rank 64 --max-model-len 8k",
]
READ_THERE = [
    {"reasoning_parser": "deepseek_r1", "enable_auto_tool_choice": True, "tool_call_parser": "hermes"},
    {"dtype": "auto", "api_key": ["token-abc123"], "chat_template": "{template}"},
    {"enable_lora": False, "max_loras": 4, "max_lora_rank": 64, "max_model_len": 8000},
]


@pytest.mark.parametrize(("line", "options"), zip(GUIDES, READ_THERE, strict=True))
def test_command_lines_of_public_guides(line, options, tmp_path):
    template = tmp_path / "template.jinja"
    template.write_text("{{ messages }}")
    given, at_default = given_flags(line.format(template=template).split())
    settings = settings_of_flags(given, "target", at_default)
    config = config_from_flags(None, {"target.model": "/t", "speculator.model": "/s", **settings})
    expected = {k: str(template) if v == "{template}" else v for k, v in options.items()}
    assert config.target.engine_options == expected
    assert given["model_tag"] == line.split()[0]


def test_a_file_of_options(tmp_path, monkeypatch):
    """`--config FILE` is vLLM's: flags of the command line win, nested values are JSON."""
    file = tmp_path / "options.yaml"
    file.write_text("model: a/b\nmax-logprobs: 5\nmax-model-len: 9\nenforce-eager: true\nhf-overrides: {a: 1}\n")
    for words in (["--config", str(file)], [f"--config={file}"]):
        given, _ = given_flags([*words, "--max-logprobs", "7"])
        assert given == {
            "model": "a/b", "max_logprobs": 7, "max_model_len": 9, "enforce_eager": True, "hf_overrides": {"a": 1}
        }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--keep-rat", "0.2"], "unrecognized arguments: --keep-rat 0.2; did you mean --keep-rate?"),
        (["--max-model-lne", "9"], "did you mean --max-model-len?"),
        (["--max-model-len", "many"], "argument --max-model-len: "),
        (["--kv-cache-dtype", "fp3"], "argument --kv-cache-dtype: invalid choice: 'fp3'"),
        (["--enable-auto-tool-choice"], "--enable-auto-tool-choice requires --tool-call-parser"),
        (["--chat-template", "no.jinja"], "no.jinja"),
        (["--config", "no.yaml"], "no.yaml"),
        (["--structured-outputs-config", '{"backend": 3}'], "argument --structured-outputs-config: "),
    ],
)
def test_what_vllm_refuses_is_one_sentence(words, sentence):
    with pytest.raises(SkimError) as refused:
        given_flags(["owner/name", *words], ["--keep-rate"])
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_front_that_cannot_read_its_options_says_so():
    served = ServedModel(TARGET, "root", ("name",), 64, {"tool_call_parsr": "hermes"})
    with pytest.raises(SkimError, match="--tool-call-parsr=hermes; did you mean --tool-call-p"):
        front_config(served)
    with pytest.raises(SkimError, match=r"^vLLM's front refuses an option of "):
        front_config(ServedModel(TARGET, "root", ("name",), 64, {"config_format": "mistral"}))
