"""`skim --help`, and mistakes of a user: one line, exit code 2, no traceback."""

import json
import re
import shutil
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from skim.pair import Pair
from skim.selection import PairSelection
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

SPECULATOR, TARGET = MODELS / "speculator", MODELS / "target"
PAIR = ("--speculator", SPECULATOR, "--target", TARGET)
COMMANDS = ("serve", "demo", "select")


@pytest.fixture
def prompt(tmp_path):
    """A file that holds a prompt."""
    file = tmp_path / "prompt.txt"
    file.write_text("The price of the golden kettle is 4821.")
    return file


@pytest.fixture
def foreign(tmp_path):
    """The demo speculator with one word of its vocabulary changed: another tokenizer than the demo target's."""
    folder = tmp_path / "foreign"
    shutil.copytree(SPECULATOR, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    word = max(vocabulary, key=vocabulary.get)
    vocabulary["xylophone"] = vocabulary.pop(word)
    tokenizer["model"]["merges"] = []
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def test_help_names_every_command(skim):
    ran = skim("--help")
    assert ran.code == 0
    assert all(command in ran.out for command in COMMANDS)
    assert "Serve long prompts fast" in ran.out
    assert skim().code in (0, 2)


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("serve", ["--target", "--speculator", "--engine", "--keep-rate", "--port", "--address", "--tensor-parallel"]),
        ("demo", ["--tokens", "--keep-rate", "--seed", "--port", "--json"]),
        ("select", ["--speculator", "--prompt-file", "--prompt-ids", "--chat", "--keep-rate", "--engine", "--json"]),
    ],
)
def test_help_says_what_each_option_does(skim, command, options):
    ran = skim(command, "--help")
    assert ran.code == 0
    lines = [line.strip("│ *\n") for line in ran.out.splitlines()]
    for option in options:
        described = next(line for line in lines if line.startswith(option)).split("  ")
        assert described[-1].strip(), f"{option} has no description"
        assert len(described) > 1, f"{option} has no description"


@pytest.mark.parametrize("words", [[], ["serve"], ["select"]])
def test_help_loads_no_engine_and_no_cluster(words):
    """Help must appear at once, so it must not import these."""
    code = (
        "import sys, cluster.commands.cli as c\n"
        f"sys.argv = ['skim', *{words!r}, '--help']\n"
        "try: c.main()\n"
        "except SystemExit: pass\n"
        "print('loaded', sorted({'ray', 'vllm', 'torch', 'transformers'} & set(sys.modules)))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "loaded []"


def test_version(skim):
    ran = skim("--version")
    assert (ran.code, ran.out.split()[0]) == (0, "skim")


def mistake(ran, *parts):
    """Assert exit code 2 and one line on stderr that starts with the program's name and contains `parts`."""
    assert ran.code == 2, ran.err
    assert "Traceback" not in ran.err + ran.out
    lines = ran.err.strip().splitlines()
    assert lines[-1].startswith("skim: ")
    assert len([line for line in lines if line.startswith("skim: ")]) == 1
    for part in parts:
        assert str(part) in ran.error
    assert ran.out == ""


@pytest.mark.parametrize("engine", ["mock", "vllm"])
def test_a_model_folder_that_is_not_there(skim, prompt, tmp_path, engine):
    ran = skim("select", "--speculator", tmp_path / "no", "--prompt-file", prompt, "--engine", engine)
    mistake(ran, "model folder", tmp_path / "no", "does not exist")
    ran = skim("serve", "--speculator", tmp_path / "no", "--target", TARGET, "--engine", engine)
    mistake(ran, "model folder", tmp_path / "no", "does not exist")


def test_a_folder_that_holds_no_model(skim, prompt, tmp_path):
    mistake(skim("select", "--speculator", tmp_path, "--prompt-file", prompt), tmp_path, "has no config.json")


def test_a_prompt_is_given_once(skim, prompt):
    both = ("--prompt-file", prompt, "--prompt-ids", prompt)
    for words in ((), both):
        ran = skim("select", "--speculator", SPECULATOR, *words, "--engine", "mock")
        mistake(ran, "give the prompt by either --prompt-file or --prompt-ids")


@pytest.mark.parametrize("content", ["{}", "[]", '["a"]', "[1, -2]", "[1.5]", "[true]"])
def test_token_ids_that_are_none(skim, tmp_path, content):
    file = tmp_path / "ids.json"
    file.write_text(content)
    ran = skim("select", "--speculator", SPECULATOR, "--prompt-ids", file, "--engine", "mock")
    mistake(ran, "must hold a JSON list of token ids, for example [1, 17, 4]")


def test_ids_outside_the_vocabulary(skim, tmp_path):
    file = tmp_path / "ids.json"
    file.write_text("[5, 99999]")
    mistake(skim("select", "--speculator", SPECULATOR, "--prompt-ids", file, "--engine", "mock"), "Token id 99999")


def test_files_that_cannot_be_read(skim, tmp_path):
    file = tmp_path / "ids.json"
    words = ("select", "--speculator", SPECULATOR, "--engine", "mock")
    mistake(skim(*words, "--prompt-ids", file), "cannot read", file, "No such file")
    file.write_text("[1,")
    mistake(skim(*words, "--prompt-ids", file), file, "is not JSON (line 1")
    file.write_bytes(b"\xff\xfe\xff")
    mistake(skim(*words, "--prompt-file", file), "cannot read", file, "not UTF-8")
    mistake(skim(*words, "--prompt-file", tmp_path), "cannot read", tmp_path, "directory")


def test_an_empty_prompt(skim, tmp_path):
    file = tmp_path / "empty.txt"
    file.write_text("")
    ran = skim("select", "--speculator", SPECULATOR, "--prompt-file", file, "--engine", "mock")
    mistake(ran, "prompt", "empty")


def test_a_result_that_cannot_be_written(skim, prompt, tmp_path):
    ran = skim(
        "select",
        "--speculator",
        SPECULATOR,
        "--prompt-file",
        prompt,
        "--engine",
        "mock",
        "--json",
        tmp_path / "no" / "x",
    )
    assert ran.code == 2
    assert "cannot write" in ran.error
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("name", ["odd [name].txt", "odd [/bold].txt", "[red].txt"])
def test_a_name_with_brackets_is_shown_as_it_is(skim, tmp_path, name):
    ran = skim("select", "--speculator", SPECULATOR, "--prompt-file", tmp_path / name, "--engine", "mock")
    mistake(ran, name)


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("keep_rate", 2, "auto or a number > 0 and <= 1"),
        ("look_ahead", 65, "less than or equal to 64"),
        ("chunk_size", 0, "greater than or equal to 1"),
    ],
)
def test_an_option_out_of_range(skim, prompt, name, value, allowed):
    flags = ("--keep-rate", value) if name == "keep_rate" else ("--options", json.dumps({name: value}))
    ran = skim("select", "--speculator", SPECULATOR, "--prompt-file", prompt, *flags, "--engine", "mock")
    mistake(ran, name, allowed, f"not {value}")


def test_serve_options_out_of_range(skim):
    mistake(skim("serve", *PAIR, "--keep-rate", 2), "selection.keep_rate", "auto or a number > 0 and <= 1", "not 2")
    mistake(skim("serve", *PAIR, "--port", 70000), "router.port", "65535")
    mistake(skim("serve", *PAIR, "--engine", "tensorrt"), "engine", "must be vllm, mock or a class")


def test_an_unknown_engine(skim, prompt):
    ran = skim("select", "--speculator", SPECULATOR, "--prompt-file", prompt, "--engine", "tensorrt")
    mistake(ran, "unknown speculator engine 'tensorrt'", "choose vllm, mock, or a class as package.module:Class")


@pytest.mark.parametrize(
    "words",
    [("select",), ("select", "--speculator", "x", "--nonsense"), ("nonsense",)],
)
def test_a_command_line_that_is_incomplete_or_unknown(skim, words):
    ran = skim(*words)
    assert ran.code == 2
    assert "Traceback" not in ran.err
    assert "Usage:" in ran.err


def test_serve_wants_both_models(skim):
    mistake(skim("serve", "--speculator", SPECULATOR), "target", "missing")
    mistake(skim("serve", "no.yaml"), "no.yaml does not exist")


def test_serve_refuses_a_tokenizer_that_cannot_be_translated(skim, foreign):
    tokenizer = json.loads((foreign / "tokenizer.json").read_text())
    tokenizer["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": False}
    (foreign / "tokenizer.json").write_text(json.dumps(tokenizer))
    ran = skim("serve", "--speculator", foreign, "--target", TARGET, "--engine", "mock")
    mistake(ran, str(foreign), "neither byte-level nor SentencePiece")


def test_a_selection_in_the_target_s_tokens(skim, foreign, tmp_path):
    (tmp_path / "text").write_text("The kettle stands near the old mill. " * 40)
    kept = tmp_path / "kept.json"
    words = ["select", "--prompt-file", tmp_path / "text", "--engine", "mock", "--keep-rate", 0.2, "--json", kept]
    assert skim(*words, "--speculator", foreign, "--target", TARGET).code == 0
    with Pair(target=TARGET, engine="mock") as pair:
        assert pair.generate(PairSelection.load(kept), max_tokens=3).text
    with Pair(target=foreign, engine="mock") as pair, pytest.raises(SkimError, match="token ids of another tokenizer"):
        pair.generate(PairSelection.load(kept), max_tokens=3)
    assert skim(*words, "--speculator", foreign).code == 0
    with Pair(target=TARGET, engine="mock") as pair, pytest.raises(SkimError, match="token ids of another tokenizer"):
        pair.generate(PairSelection.load(kept), max_tokens=3)


def test_serve_refuses_a_port_in_use(skim):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = skim("serve", *PAIR, "--engine", "mock", "--port", port)
    mistake(ran, f"cannot listen on 127.0.0.1:{port}", "--port")


def test_serve_refuses_a_machine_that_is_too_small(skim, monkeypatch):
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=2**30))
    mistake(skim("serve", *PAIR, "--port", 0), "router.port")
    from demo_models.ports import free_port

    ran = skim("serve", *PAIR, "--port", free_port())
    mistake(ran, "this deployment needs about", "1.0 GiB are free", "VLLM_CPU_KVCACHE_SPACE")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--prompt-tokens", "2048,many"), "--prompt-tokens: 2048,many must be different whole numbers"),
        (("--prompt-tokens", "255"), "must be different whole numbers of at least 256"),
        (("--prompt-tokens", "2048,2048"), "different whole numbers"),
        (("--modes", "remote,fast"), "--modes: 'fast' is not a mode; choose from plain, remote, remote_kept"),
    ],
)
def test_bench_settings_that_make_no_sense(skim, words, sentence):
    ran = skim("bench", "decode", *words)
    assert ran.code == 2
    assert sentence in ran.error


def test_the_first_word_of_serve_is_the_target_or_a_file(skim, tmp_path):
    no = tmp_path / "no"
    mistake(skim("serve", no, "--speculator", SPECULATOR), "model folder", no, "does not exist")
    mistake(skim("serve", TARGET, "--target", no), f"the target is given twice: {TARGET} and --target {no}")
    for suffix in (".yaml", ".yml"):
        mistake(skim("serve", no.with_suffix(suffix)), "config file", no.with_suffix(suffix), "does not exist")
    mistake(skim("serve", "owner/name", "--speculator", SPECULATOR), "model owner/name: ", "HF_HUB_OFFLINE")


def test_without_a_target_the_first_word_is_the_speculator(skim, tmp_path, monkeypatch):
    started = []

    def deployed(config, **_):
        started.append(config)
        raise SkimError("started")

    monkeypatch.setattr("cluster.serve.deployment.deployed", deployed)
    file = tmp_path / "pair.yaml"
    file.write_text(f"speculator: {{model: {SPECULATOR}}}\ntarget: {{model: {TARGET}, replicas: 2}}\n")
    for words in ((SPECULATOR,), ("--speculator", SPECULATOR), (file,)):
        mistake(skim("serve", *words, "--select-only", "--engine", "mock"), "started")
        config = started.pop()
        assert {name: (pool.model, pool.engine) for name, pool in config.pools.items()} == {
            "speculator": (str(SPECULATOR), "mock")
        }
        assert (config.target.model, config.router.select_only) == (str(SPECULATOR), True)
    mistake(skim("serve", SPECULATOR, "--select-only", "--speculator", TARGET), "the speculator is given twice")
    mistake(skim("serve", SPECULATOR, "--select-only", "--target", TARGET), "no target runs")
    mistake(
        skim("serve", SPECULATOR, "--select-only", "--enforce-eager"), "the speculator's flags are --speculator.FLAG"
    )


def broken(words, raised):
    """`skim` with these words and one more command, `fail`, which raises an error."""
    code = (
        "import sys, cluster.commands.cli as c\n"
        f"def fail(): raise {raised}\n"
        "c.app.command('fail')(fail)\n"
        f"sys.argv = {['skim', *words]!r}\n"
        "c.main()"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("raised", "code", "told"),
    [
        ("OSError(28, 'No space left on device')", 1, r"an unexpected error \(OSError: .* left on device\) ended this"),
        ("KeyError()", 1, r"an unexpected error \(KeyError\) ended this; `skim --verbose` shows where it was"),
        ("c.SkimError('no')", 2, "no"),
        ("KeyboardInterrupt", 130, None),
    ],
)
def test_an_unexpected_error_is_one_line_and_a_trace_only_if_asked_for(raised, code, told):
    ran = broken(["fail"], raised)
    assert (ran.returncode, "Traceback" in ran.stderr) == (code, False)
    lines = [line for line in ran.stderr.splitlines() if line.startswith("skim:")]
    assert len(lines) == (told is not None)
    assert told is None or re.search(told, lines[0])
    verbose = broken(["--verbose", "fail"], raised)
    assert (verbose.returncode, "Traceback" in verbose.stderr) == (code, told is not None)
