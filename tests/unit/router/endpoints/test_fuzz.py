"""No body gives a status of 500 or more, whatever its fields hold."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.router.bodies import SCHEMAS, bodies

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("path", SCHEMAS)
@settings(derandomize=True, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_no_body_gives_a_server_error(served, path, data):
    body = data.draw(bodies(path))
    response = await served.client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code < 500, (body, response.text)
