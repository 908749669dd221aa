"""Engine classes by name, for both factories."""

import pytest

from benchmarks.mock_engines.speculator import MockSpeculator
from benchmarks.mock_engines.target import MockTarget
from skim_common.errors import SkimError
from speculator_service.engine import create_engine as create_speculator
from target_service.engine import create_engine as create_target
from tests.unit.conftest import MODELS


class OwnTarget(MockTarget):
    """An engine that a user wrote."""

    def __init__(self, model: str, *, tensor_parallel: int, **options: object) -> None:
        super().__init__(model)
        self.given = tensor_parallel, options


def test_a_class_is_called_with_model_ranks_and_options():
    engine = create_target(f"{__name__}:OwnTarget", str(MODELS / "target"), tensor_parallel=2, options={"a": 1})
    assert type(engine).__name__ == "OwnTarget"
    assert engine.given == (2, {"a": 1})
    assert engine.info.path == str(MODELS / "target")


@pytest.mark.parametrize(
    ("create", "name", "cls"),
    [
        (create_target, "target:MockTarget", MockTarget),
        (create_speculator, "speculator:MockSpeculator", MockSpeculator),
    ],
)
def test_mock_is_the_short_name_of_a_class(create, name, cls):
    for kind in ("mock", f"benchmarks.mock_engines.{name}"):
        assert isinstance(create(kind, str(MODELS / "target")), cls)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("tensorrt", "unknown target engine 'tensorrt': choose vllm, mock, or a class as package.module:Class"),
        ("no_such_package.engine:Engine", "cannot be imported: No module named 'no_such_package'"),
        ("benchmarks.mock_engines.target:Nothing", "has no attribute 'Nothing'"),
        (":Engine", "cannot be imported"),
        ("benchmarks.mock_engines.speculator:MockSpeculator", "is no subclass of target_service.engine.TargetEngine"),
        ("benchmarks.mock_engines.target:mock_tokens", "is no subclass of target_service.engine.TargetEngine"),
    ],
)
def test_a_wrong_name_is_one_sentence(kind, error):
    with pytest.raises(SkimError, match=error) as raised:
        create_target(kind, str(MODELS / "target"))
    assert "\n" not in str(raised.value)


def test_a_class_that_names_its_options_takes_no_other():
    kind = "benchmarks.mock_engines.target:MockTarget"
    with pytest.raises(SkimError, match="engine option 'x': the options are prefill_ms, ") as raised:
        create_target(kind, str(MODELS / "target"), options={"x": 1})
    assert "tensor_parallel" not in str(raised.value)
