"""What `vllm serve` would find out late is refused before an engine starts, in one sentence with the cause."""

import json
import subprocess
import sys
from functools import partial

import pytest

from router.vllm_front import program
from router.vllm_front.program import check_front
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

MODEL = str(MODELS / "target")

FILES = {
    "good.jinja": "{% for m in messages %}{{ m.content }}{% endfor %}",
    "bad.jinja": "{% for m in messages %}\n{{ m.content }}{% endfo %}",
    "filter.jinja": "{{ messages | no_such_filter }}",
    "refuses.jinja": "{{ raise_exception('a system message is needed') }}",
    "tools.py": """
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.hermes_tool_parser import Hermes2ProToolParser
ToolParserManager.register_module("mine", module=type("Mine", (Hermes2ProToolParser,), {}))
""",
    "raises.py": "import no_such_module",
    "leaves.py": "import sys; sys.exit(3)",
}
"""Files that options name, as {name}."""


def check(tmp_path, front=(), **arguments):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    named = {f"@{name}": str(tmp_path / name) for name in FILES}
    options = {
        name: named.get(value, value) if isinstance(value, str) else value for name, value in dict(front).items()
    }
    given = {"names": ["base"], "engine_options": options, "python_path": "", "pools": {}, "settings": {}, **arguments}
    check_front(model=MODEL, root="target", front_options={"dtype": "float32", **options}, **given)


@pytest.mark.parametrize(
    "front",
    [
        {},
        {"tool_call_parser": "hermes", "enable_auto_tool_choice": True},
        {"tool_parser_plugin": "@tools.py", "tool_call_parser": "mine", "enable_auto_tool_choice": True},
        {"chat_template": "@good.jinja"},
        {"chat_template": "@refuses.jinja"},  # it may serve other chats; each of these is told
        {"structured_outputs_config": {"backend": "guidance"}},
        {"override_generation_config": {"temperature": 0.5}},
    ],
)
def test_what_can_be_served_is_not_refused(tmp_path, front):
    check(tmp_path, front)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"max_num_seqs": "many"}, "argument --max-num-seqs: invalid int value: 'many'"),
        ({"max_num_seqs": 0}, "max_num_seqs: .*greater than or equal to 1"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization: .*less than or equal to 1"),
        ({"enforce_eager": "yes"}, "enforce_eager must be true or false, not 'yes'"),
        ({"enable_prefix_cahing": True}, "did you mean --enable-prefix-caching"),
        ({"kv_cache_dtype": "fp3"}, "argument --kv-cache-dtype: invalid choice: 'fp3'"),
    ],
)
def test_what_vllm_refuses_of_a_pool_is_refused_without_its_model(options, told):
    given = {"names": ["base"], "engine_options": {}, "python_path": "", "settings": {}, "front_options": {}}
    with pytest.raises(SkimError, match=rf"^speculator\.engine_options: `vllm serve` does not take this: .*{told}"):
        check_front(model="/not/here", root="x", pools={"speculator": options}, is_here=False, **given)
    usual = {"max_model_len": 4096, "enforce_eager": True, "enable_prefix_caching": False, "dtype": "bfloat16"}
    check_front(model="/not/here", root="x", pools={"target": usual}, is_here=False, **given)


AUTO = {"enable_auto_tool_choice": True}

REFUSED = [
    ({"tool_call_parser": "no-such", **AUTO}, "vLLM has no tool parser 'no-such'; choose one of .*hermes, .*xlam$"),
    ({"tool_call_parser": "no-such"}, "vLLM has no tool parser 'no-such'"),
    ({"tool_call_parser": "mistral", **AUTO}, "tool parser 'mistral' cannot be used with this model .*tokenizer"),
    (AUTO, "requires --tool-call-parser"),
    ({"reasoning_parser": "no-such"}, "vLLM has no reasoning parser 'no-such'; choose one of .*qwen3, .*step3p5$"),
    ({"structured_outputs_config": {"reasoning_parser": "no-such"}}, "vLLM has no reasoning parser 'no-such'"),
    ({"reasoning_parser": "deepseek_r1"}, "could not locate think start/end tokens in the tokenizer"),
    ({"structured_outputs_config": {"backend": "no"}}, "'auto', 'xgrammar', 'guidance', 'outlines' or 'lm-format-enf"),
    ({"tool_parser_plugin": "no.py"}, "tool_parser_plugin no.py cannot be imported .*No such file"),
    ({"tool_parser_plugin": "@raises.py"}, "tool_parser_plugin .* cannot be imported .*No module named 'no_such_modul"),
    ({"reasoning_parser_plugin": "@leaves.py"}, "reasoning_parser_plugin .* cannot be imported .SystemExit: 3"),
    ({"chat_template": "no.jinja"}, r"chat template string \(no.jinja\).*doesn't exist"),
    ({"chat_template": "@bad.jinja"}, "the chat template is not valid Jinja .line 2: .*unknown tag 'endfo'"),
    ({"chat_template": "@filter.jinja"}, "the chat template is not valid Jinja .line 1: No filter named 'no_such_fil"),
    ({"chat_template": "{% for %}"}, "the chat template is not valid Jinja"),
    ({"middleware": ["no_such.Class"]}, "middleware no_such.Class cannot be imported .*No module named"),
    ({"middleware": ["json.JSONDecoder"]}, "options dtype, middleware .TypeError: JSONDecoder"),
    ({"override_generation_config": {"temperature": -3}}, "generation config .*temperature must be non-negative"),
    ({"logits_processors": ["json:JSONDecoder"]}, "logits processor 'json:JSONDecoder' cannot be used .*subclass"),
    ({"config_format": "no-such"}, "Unknown config format `no-such`"),
    ({"media_io_kwargs": {"a": 1}}, "media_io_kwargs.a: should be a valid dictionary"),
    ({"tool_server": "localhost:1"}, "options dtype, tool_server .ConnectError"),
    ({"lora_modules": ["base=/x"]}, "an adapter with the name of the model, 'base'"),
    ({"lora_modules": ["sql=/x"]}, "the LoRA adapter 'sql' has no adapter_config.json in /x"),
]  # fmt: skip


@pytest.mark.parametrize(("front", "sentence"), REFUSED, ids=[str(front)[:50] for front, _ in REFUSED])
def test_what_vllm_reads_late_is_one_sentence(tmp_path, front, sentence):
    with pytest.raises(SkimError, match=sentence) as refused:
        check(tmp_path, front)
    assert "\n" not in str(refused.value)


def test_the_keys_of_the_endpoint_are_read(tmp_path):
    with pytest.raises(SkimError, match="api_keys_file"):
        check(tmp_path, settings={"api_keys_file": str(tmp_path / "no.yaml")})


def test_a_logits_processor_is_found_where_the_target_finds_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "own_processors.py").write_text(
        "from vllm.v1.sample.logits_processor import MinPLogitsProcessor\nclass Own(MinPLogitsProcessor): pass\n"
    )
    asks = partial(check, tmp_path, {"logits_processors": ["own_processors:Own"]})
    with pytest.raises(SkimError, match="own_processors:Own"):
        asks()
    asks(python_path=str(tmp_path))


def test_a_file_that_prints_does_not_disturb_the_answers(tmp_path):
    """One process answers several questions, and ends with its caller."""
    (tmp_path / "prints.py").write_text("print('hello')")
    line = ["--tool-parser-plugin", "prints.py"]
    asked = [
        {"question": "read_flags", "lines": [line], "own": [], "folder": str(tmp_path)},
        {"question": "read_flags", "lines": [["--no-such"]], "own": [], "folder": str(tmp_path)},
    ]
    ran = subprocess.run(
        [sys.executable, "-P", "-m", program.__name__],
        input="".join(json.dumps(one) + "\n" for one in asked),
        capture_output=True,
        text=True,
        check=True,
    )
    first, second = map(json.loads, ran.stdout.splitlines())
    assert first["answer"] == [[{"tool_parser_plugin": "prints.py"}, []]]
    assert "--no-such" in second["error"]
