"""The committed day checks the functions of Ray that only it needs."""

import pytest
from ray.serve import autoscaling_policy

from benchmarks.scaling.simulated_day.__main__ import simulated
from benchmarks.scaling.simulated_day.serve_delays import HOOK
from skim_common.errors import SkimError
from skim_common.symbols import RAY


def test_the_installed_ray_has_them():
    RAY.check(HOOK.symbols)


@pytest.mark.parametrize("name", [name for _, name, _ in HOOK.symbols])
def test_a_renamed_one_ends_the_benchmark_before_it_begins(monkeypatch, name):
    monkeypatch.delattr(autoscaling_policy, name)
    with pytest.raises(SkimError, match=name):
        simulated()
