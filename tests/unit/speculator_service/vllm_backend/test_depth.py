"""A step of windows alone runs the lower layers of the model; each other step runs all."""

from types import SimpleNamespace

import pytest
import torch

from speculator_service.vllm_backend.capture.scored_requests import Computed, ScoredRequest
from speculator_service.vllm_backend.depth import LayerLoop, depth_of


def part(**options):
    asked = {"rows": [], "steps": 1, "look_ahead": 0, **options}
    return Computed(ScoredRequest("r", 10, asked), 0, 10)


def test_a_step_needs_as_many_layers_as_its_deepest_window():
    assert depth_of([part(depth=3), part(depth=5), part(depth=2)], 3) == 5


@pytest.mark.parametrize(
    ("parts", "requests"),
    [([part(depth=3), part()], 2), ([part(depth=3)], 2), ([part()], 1), ([], 1), ([], 0)],
    ids=["a whole read", "a draft", "no window", "only drafts", "nothing"],
)
def test_other_requests_need_all_layers(parts, requests):
    assert depth_of(parts, requests) is None


class Layers(torch.nn.Module):
    """As vLLM's models: counts the layers that run. do_not_compile is vLLM's mark of a model that is not compiled."""

    def __init__(self, compiled=False):
        super().__init__()
        self.start_layer, self.end_layer, self.do_not_compile = 0, 6, not compiled

    def run(self):
        return (self.end_layer - self.start_layer, self.do_not_compile)


def loop_of(model, captured=0):
    return LayerLoop(torch.nn.Sequential(model), SimpleNamespace(max_cudagraph_capture_size=captured))


def test_the_loop_ends_early_meanwhile():
    model = Layers()
    with loop_of(model).up_to(4, 100):
        assert model.run() == (4, True)
    assert model.run() == (6, True)
    with loop_of(model).up_to(None, 100):
        assert model.run() == (6, True)


def test_a_compiled_model_runs_uncompiled_only_beyond_its_cuda_graphs():
    model = Layers(compiled=True)
    with loop_of(model, captured=512).up_to(4, 513):
        assert model.run() == (4, True)
    assert model.run() == (6, False)
    with loop_of(model, captured=512).up_to(4, 512):
        assert model.run() == (6, False)


def test_a_compiled_model_stays_compiled_where_no_layer_is_left_out():
    model = Layers(compiled=True)
    with loop_of(model).up_to(6, 100):
        assert model.run() == (6, False)


def test_after_a_failed_step_all_layers_run_again():
    model = Layers(compiled=True)
    with pytest.raises(RuntimeError), loop_of(model).up_to(4, 100):
        raise RuntimeError
    assert model.run() == (6, False)


def test_a_model_without_such_a_loop_runs_whole():
    LayerLoop(torch.nn.Linear(2, 2), SimpleNamespace(max_cudagraph_capture_size=None)).up_to(4, 100).__enter__()
