"""`skim serve` with flags of `vllm serve`: the deployment that it would start, and what it refuses."""

import pytest

from cluster.commands import serve_flags
from cluster.serve import front_process
from router.vllm_front.flags import given_flags
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

SPECULATOR, TARGET = MODELS / "speculator", MODELS / "target"


@pytest.fixture
def serve(skim, monkeypatch):
    """`serve(words)` runs `skim serve` and gives the deployment that it would start, or what it says instead."""
    started = []

    def deployed(deployment, **options):
        started.append(deployment)
        raise SkimError("enough")

    monkeypatch.setattr("cluster.serve.deployment.deployed", deployed)
    monkeypatch.setattr(front_process, "begin_check", lambda config: None)

    def run(*words):
        started.clear()
        ran = skim("serve", *words)
        return started[0] if started else ran.error

    yield run
    front_process.end_front_process()


@pytest.fixture
def in_this_process(monkeypatch):
    """vLLM's parser is here already."""

    def read(lines, own):
        return [given_flags(line, own) for line in lines]

    monkeypatch.setattr(serve_flags, "_read", read)


def test_a_line_of_vllm_serve(serve, tmp_path):
    """Read by a process of its own, as for a user."""
    (tmp_path / "options.yaml").write_text("max-logprobs: 7\nreasoning-parser: qwen3\n")
    line = [TARGET, "--config", tmp_path / "options.yaml", "--api-key", "k1", "k2", "-tp", "2", "--host", "0.0.0.0"]
    line += ["--speculator.max-model-len", "4k", "--speculator.enforce-eager", "--served-model-name", "a", "b"]
    line += ["--speculator", SPECULATOR, "--keep-rate", "0.3", "--max-model-len", "8k", "--enable-log-requests"]
    config = serve(*line, "--port", "8123", "--data-parallel-size", "1")
    assert (config.target.model, config.speculator.model) == (str(TARGET), str(SPECULATOR))
    assert config.target.engine_options == {
        "max_logprobs": 7, "reasoning_parser": "qwen3", "api_key": ["k1", "k2"], "max_model_len": 8000,
        "enable_log_requests": True,
    }  # fmt: skip
    assert config.speculator.engine_options == {"max_model_len": 4000, "enforce_eager": True}
    assert (config.target.tensor_parallel, config.speculator.tensor_parallel) == (2, 1)
    assert (config.served_model_name, config.model_aliases) == ("a", ("b",))
    assert (config.router.host, config.router.port, config.selection.keep_rate) == ("0.0.0.0", 8123, 0.3)


def test_flags_override_a_file(serve, in_this_process, tmp_path):
    file = tmp_path / "skim.yaml"
    file.write_text(
        f"speculator: {{model: {SPECULATOR}}}\n"
        f"target: {{model: {TARGET}, engine_options: {{max-logprobs: 5, seed: 3}}}}\nrouter: {{port: 9}}\n"
    )
    config = serve(file, "--max-logprobs", "7", "--tool-call-parser", "hermes")
    assert config.target.engine_options == {"max_logprobs": 7, "seed": 3, "tool_call_parser": "hermes"}
    assert config.router.port == 9


def test_a_path_is_made_absolute(serve, in_this_process, tmp_path, monkeypatch):
    (tmp_path / "chat.jinja").write_text("{{ messages }}")
    monkeypatch.chdir(tmp_path)
    words = (TARGET, "--speculator", SPECULATOR, "--chat-template")
    assert serve(*words, "chat.jinja").target.engine_options == {"chat_template": str(tmp_path / "chat.jinja")}
    assert serve(*words, "{{ m }}").target.engine_options == {"chat_template": "{{ m }}"}
    file = tmp_path / "skim.yaml"
    file.write_text(
        f"speculator: {{model: {SPECULATOR}}}\n"
        f"target: {{model: {TARGET}, engine_options: {{chat_template: chat.jinja}}}}"
    )
    monkeypatch.chdir("/")
    assert serve(file).target.engine_options == {"chat_template": str(tmp_path / "chat.jinja")}


def test_the_place_of_the_model(serve, in_this_process):
    """Anywhere, as with vLLM; a revision is part of its name."""
    line = ["--max-logprobs", "7", "owner/big", "--speculator=owner/small", "--revision", "v1"]
    config = serve(*line)
    assert (config.target.model, config.speculator.model) == ("owner/big@v1", "owner/small")
    assert serve("--model", "owner/big", "--speculator", "owner/small").target.model == "owner/big"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--data-parallel-size", "2"], "--data-parallel-size is not taken: each replica is one engine: set replicas"),
        (["--speculator.lora-modules", "a=b"], "--speculator.lora-modules is for the endpoint"),
        (["--speculator.worker-cls", "a.b"], "--speculator.worker-cls is not taken: Skim has its own"),
        (["--speculator.api-key", "k"], "--speculator.api-key is for the endpoint, not for a pool: write --api-key"),
        (["--speculator.port", "1"], "--speculator.port is for the endpoint"),
        (["--speculator.revision", "v1"], "--speculator owner/name@revision"),
        (["--speculator.enforce-eager", "word"], "word stands in the speculator's flags"),
        (["--keep-rat", "0.2"], "did you mean --keep-rate?"),
        (["--no-such"], "unrecognized arguments: --no-such"),
    ],
)
def test_what_is_refused_is_one_sentence(serve, in_this_process, words, sentence):
    told = serve("owner/big", "--speculator", "owner/small", *words)
    assert told.startswith("skim: ")
    assert sentence in told


def test_a_plain_line_reads_no_flags(serve, monkeypatch):
    """vLLM is not imported for it, which takes seconds."""
    monkeypatch.setattr(serve_flags, "_read", None)
    words = ("--speculator", SPECULATOR, "--tensor-parallel", "2", "--port", "9")
    assert serve(TARGET, *words).target.tensor_parallel == 2
    assert serve("--target", TARGET, *words).router.port == 9


def test_a_reader_that_fails_says_so(serve, monkeypatch):
    monkeypatch.setattr(front_process, "PROGRAM", "router.no_such_program")
    assert "vLLM cannot read its options on this machine: " in serve(TARGET, "--speculator", SPECULATOR, "--seed", "1")
