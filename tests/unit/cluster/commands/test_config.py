"""`skim config check` and `skim config show`: they start nothing and report an error in one line."""

import pytest

from cluster.config.load import load_config
from tests.unit.conftest import MODELS

EXAMPLES = MODELS.parent / "examples"


@pytest.mark.parametrize("example", ["demo", "llama-70b-1b", "llama-405b", "multi-node", "select-only"])
def test_the_examples_are_right(skim, example):
    ran = skim("config", "check", EXAMPLES / f"{example}.yaml")
    assert (ran.code, "is valid" in ran.out) == (0, True)
    assert ("was not checked" in ran.out) == (example not in ("demo", "select-only"))


def test_a_pool_that_scales_says_so(skim):
    assert (
        "speculator 2 to 12 x 1 on vllm, target 2 to 6 x 4" in skim("config", "check", EXAMPLES / "multi-node.yaml").out
    )


def test_a_wrong_file(skim, tmp_path):
    file = tmp_path / "skim.yaml"
    file.write_text("speculator: {model: a}\ntarget: {model: b}\nrouter:\n  prot: 1\n")
    for command in ("check", "show"):
        ran = skim("config", command, file)
        assert (ran.code, ran.out) == (2, "")
        assert "line 4: router.prot: is not a setting; did you mean port?" in ran.error


def test_models_that_are_here_are_looked_at(skim, tmp_path):
    file = tmp_path / "skim.yaml"
    file.write_text(f"speculator: {{model: {MODELS}/speculator}}\ntarget: {{model: {tmp_path}}}\n")
    ran = skim("config", "check", file)
    assert ran.code == 2
    assert "has no config.json" in ran.error


SECRET = "sekret-sekret-sekret"
SECRETS = f"""
speculator: {{model: a, env: {{HF_TOKEN: {SECRET}, OMP_NUM_THREADS: "2"}}}}
target: {{model: b, engine_options: {{api_key: [{SECRET}], tool_call_parser: hermes}}}}
channel: {{token: {SECRET}}}
"""


def test_no_secret_is_shown(skim, tmp_path):
    file = tmp_path / "skim.yaml"
    file.write_text(SECRETS)
    shown = skim("config", "show", file).out
    assert SECRET not in shown
    assert shown.count('"***"') == 3
    assert ('"OMP_NUM_THREADS": "2"' in shown, '"hermes"' in shown) == (True, True)
    file.write_text(shown)
    ran = skim("config", "check", file)
    assert (ran.code, "speculator.env.HF_TOKEN: is hidden by `skim config show`" in ran.error) == (2, True)


def test_a_wrong_secret_is_not_shown(skim, tmp_path):
    file = tmp_path / "skim.yaml"
    file.write_text(SECRETS.replace(f"token: {SECRET}}}", "token: sekret}"))
    ran = skim("config", "check", file)
    assert (ran.code, "channel.token: String should have at least 16" in ran.error) == (2, True)
    assert "sekret" not in ran.error


def test_what_is_shown_is_the_same_config(skim, tmp_path):
    shown = skim("config", "show", EXAMPLES / "multi-node.yaml").out
    (tmp_path / "shown.yaml").write_text(shown)
    assert load_config(tmp_path / "shown.yaml") == load_config(EXAMPLES / "multi-node.yaml")
    assert "# share to keep of what may be dropped" in shown
