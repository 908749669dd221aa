"""The process that checks what the endpoint would refuse late: when it runs, and what its failures say."""

import json

import pytest

from cluster.config.schema import DeploymentConfig
from cluster.serve import front_process
from cluster.serve.deployment import deploy, deployed
from cluster.serve.front_process import FrontProcess, begin_check, check_front
from cluster.serve.preflight import checked
from demo_models.ports import free_port
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS


def deployment(target=None, **other):
    pools = {
        "speculator": {"model": str(MODELS / "speculator"), "engine": "mock"},
        "target": {"model": str(MODELS / "target"), "engine": "mock", **(target or {})},
    }
    return DeploymentConfig.model_validate({**pools, **other})


PARSER = {"engine_options": {"tool_call_parser": "no-such"}}


@pytest.fixture
def starts(monkeypatch):
    """The starts of a process that answers with nothing, or with `starts.error`."""

    class Process:
        made, sent, error = [], [], None

        def __init__(self):
            self.made.append("started")

        def ask(self, question, **arguments):
            self.sent.append((question, json.loads(json.dumps(arguments))))
            if self.error:
                raise SkimError(self.error)

        def end(self):
            self.made.append("ended")

    monkeypatch.setattr(front_process, "FrontProcess", Process)
    return Process


@pytest.mark.parametrize(
    ("target", "other", "asks"),
    [
        ({}, {}, False),
        ({"engine_options": {"max_model_len": 2048}}, {}, False),
        ({"engine": "vllm", "engine_options": {"approximate_positions": True}}, {}, False),
        ({"engine": "vllm", "engine_options": {"max_num_seqs": 8}}, {}, True),
        ({"engine_options": {"enable_log_requests": True}}, {}, True),
        (PARSER, {}, True),
        ({"engine_options": {"lora_modules": ["a=b"]}}, {}, True),
        ({}, {"router": {"api_keys_file": "/keys.yaml"}}, True),
    ],
)
def test_it_starts_if_an_option_is_for_vllm(starts, target, other, asks):
    """Its import of vLLM takes seconds."""
    config = deployment(target, **other)
    check_front(config)
    assert starts.made == (["started", "ended"] if asks else [])


def test_it_is_asked_about_the_deployment(starts):
    config = deployment(PARSER, served_model_name="a", model_aliases=["b"])
    begin_check(config)
    check_front(config)
    [(question, asked)] = starts.sent
    assert (question, asked["names"], asked["front_options"]) == ("check_front", ["a", "b"], PARSER["engine_options"])


def test_nothing_starts_after_a_refusal(starts, monkeypatch):
    """Neither Ray nor an engine, in `skim serve` and in `skim deploy`."""
    starts.error = "no such parser"
    for name in ("deployment._start_ray", "deployment.join_ray", "preflight.fetch_weights"):
        monkeypatch.setattr(f"cluster.serve.{name}", lambda *_: pytest.fail("something has started"))
    config = deployment(PARSER, router={"port": free_port()})
    with pytest.raises(SkimError, match="no such parser"), deployed(config):
        pass
    with pytest.raises(SkimError, match="no such parser"):
        deploy(config, "auto")
    assert starts.made == ["started", "ended"] * 2


def test_folders_of_other_machines_are_checked_there(starts):
    config = deployment({**PARSER, "model": "/on/another/machine"}, spans_machines=True)
    assert checked(config, is_local=False, print_line=pytest.fail) == config
    assert [asked["is_here"] for _, asked in starts.sent] == [False]


def test_a_wrong_parser_is_refused_by_vllm():
    with pytest.raises(SkimError, match=r"vLLM has no tool parser 'no-such'; choose one of .*hermes"):
        check_front(deployment(PARSER))


def test_a_process_that_ends_is_one_sentence(monkeypatch):
    monkeypatch.setattr(front_process, "PROGRAM", "router.no_such_program")
    front = FrontProcess()
    with pytest.raises(SkimError, match=r"vLLM cannot read its options on this machine: .*no_such_program"):
        front.ask("read_flags", lines=[])
    front.end()
