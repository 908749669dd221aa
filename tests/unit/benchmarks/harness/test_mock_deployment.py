"""The deployment of benchmarks that run no model."""

import pytest

from benchmarks.harness.mock_deployment import NAME, mock_deployment
from skim_common.errors import SkimError
from tests.unit.conftest import MODELS

PAIR = (str(MODELS / "target"), str(MODELS / "speculator"))


def test_pools_and_router_have_their_options():
    config = mock_deployment(*PAIR, {"target": {"prefill_ms": 7.0, "one_at_a_time": True}}, replicas=2, max_wait_s=3.0)
    assert (config.target.engine, config.speculator.engine, config.decode.method) == ("mock", "mock", "none")
    assert config.target.engine_options == {"prefill_ms": 7.0, "one_at_a_time": True}
    assert config.speculator.engine_options == {}
    assert (config.router.replicas, config.router.max_wait_s, config.served_model_name) == (2, 3.0, NAME)


def test_an_option_that_does_not_exist_is_refused():
    with pytest.raises(SkimError, match="max_weight_s"):
        mock_deployment(*PAIR, {}, max_weight_s=3.0)
