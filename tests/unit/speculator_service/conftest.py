import numpy as np
import pytest

from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions
from tests.unit.kv_transfer.layouts import layout_of


@pytest.fixture(scope="session")
def demo_speculator(pytestconfig):
    return str(pytestconfig.rootpath / "demo_models" / "speculator")


@pytest.fixture
def make_request():
    def make(token_ids, spans=(), return_importance=False, **options):
        return SelectRequest(
            request_id="r",
            token_ids=np.asarray(token_ids, np.int32),
            options=SelectionOptions(**options),
            layout=layout_of(spans),
            return_importance=return_importance,
        )

    return make
