"""The short form of the fuzzers of `tests/fuzz`, always with the same seed; `make fuzz` is the long one."""

import pytest

from kv_transfer import codec
from tests.fuzz.mutations import fuzz
from tests.fuzz.targets import CLASSES, TARGETS, corpus


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_examples_harm_nothing(name):
    fuzz(TARGETS[name], list(corpus(name)), 2000, seed=1)


def test_the_corpus_is_read():
    """Else the mutations would all be refused at the header."""
    read = {CLASSES[data[0]] for data in corpus("messages") if data[1:5] == codec._MAGIC}
    assert len(read) > 8


@pytest.mark.parametrize("broken", [IndexError, MemoryError])
def test_a_fault_is_found_and_its_bytes_are_named(monkeypatch, broken):
    """The control: a decoder that lets another exception than SkimError out."""

    def fail(data):
        raise broken("fault")

    monkeypatch.setattr(codec, "_read_header", fail)
    with pytest.raises(broken, match="fault") as found:
        fuzz(TARGETS["messages"], list(corpus("messages")), 10, seed=1)
    assert found.value.__notes__[0].startswith("seed 1, call ")
