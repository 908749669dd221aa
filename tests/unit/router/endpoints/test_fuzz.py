"""No body gives a status of 500 or more, whatever its fields hold."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.router.bodies import SCHEMAS, bodies, deep_bodies, large_bodies

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("kind", [bodies, large_bodies])
@pytest.mark.parametrize("path", SCHEMAS)
@settings(derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
async def test_no_body_gives_a_server_error(served, path, kind, data):
    body = data.draw(kind(path))
    response = await served.client.post(path, content=body, headers={"content-type": "application/json"})
    assert response.status_code < 500, (body[:2000], response.text)


@pytest.mark.parametrize("path", SCHEMAS)
async def test_no_deep_body_gives_a_server_error(served, path):
    for body in deep_bodies(path):
        response = await served.client.post(path, content=body, headers={"content-type": "application/json"})
        assert (response.status_code, "levels of lists and objects" in response.text) == (400, True), body[:200]
