import numpy as np
import pytest

from kv_transfer.messages import SelectRequest
from kv_transfer.options import SelectionOptions


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
            protected_spans=np.array(spans, np.int32).reshape(-1, 2),
            return_importance=return_importance,
        )

    return make
