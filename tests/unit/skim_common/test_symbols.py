"""Which symbols of a library are found, and the sentence on one that is not."""

import sys
from dataclasses import dataclass, field
from types import ModuleType

import pytest

from skim_common.errors import SkimError
from skim_common.symbols import Library


class Base:
    def begin(self):
        self.began = True


class Worker(Base):
    limit = 3

    def run(self, task, *, again=False):
        return self.limit, task, again

    @property
    def idle(self):
        return True


@dataclass
class Message:
    text: str
    parts: list = field(default_factory=list)


@pytest.fixture
def library(monkeypatch):
    module = ModuleType("toy")
    module.Worker, module.Message, module.VERSION, module.__version__ = Worker, Message, "x", "2.1"
    monkeypatch.setitem(sys.modules, "toy", module)
    return Library("Toy", "toy", "2.0")


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("VERSION", ""), ("Worker.limit", ""), ("Worker.idle", ""), ("Worker.began", ""), ("Message.text", ""),
        ("Message.parts", ""), ("Worker.run", ""), ("Worker.run", "self task"), ("Worker.run", "self task again"),
    ],
)  # fmt: skip
def test_what_is_there(library, name, parameters):
    library.check([("toy", name, parameters)])


@pytest.mark.parametrize(
    ("module", "name", "parameters", "reason"),
    [
        ("toy", "worker", "", "module 'toy' has no attribute 'worker'"),
        ("toy", "Worker.stop", "self", "no attribute 'stop'"),
        ("toy", "Worker.run", "self job", r"its parameters are \(self, task, again\)"),
        ("toy", "VERSION", "self", "is not a callable object"),
        ("toy.other", "Worker", "", "No module named 'toy.other'"),
    ],
)
def test_what_is_not_is_named_in_one_sentence(library, module, name, parameters, reason):
    expected = rf"^Skim's hooks were made for Toy 2\.0 and do not fit {module}\.{name} of Toy 2\.1 \([^\n]*{reason}"
    with pytest.raises(SkimError, match=expected) as error:
        library.check([("toy", "Worker", ""), (module, name, parameters)])
    assert str(error.value).endswith("); install Toy 2.0")
