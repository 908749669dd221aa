import gc

import pytest

from actors.start_up import uncollected


@pytest.fixture(autouse=True)
def collecting():
    yield
    gc.enable()


def test_what_was_made_is_left_alone_and_all_else_collected():
    frozen = gc.get_freeze_count()
    with uncollected():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= frozen + len(made)
    assert not any(found is made[0] for found in gc.get_objects())


def test_a_start_that_fails_leaves_the_collector_on():
    with pytest.raises(RuntimeError), uncollected():
        raise RuntimeError
    assert gc.isenabled()
