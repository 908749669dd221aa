"""The deployments of the end-to-end tests, for tests that harm them."""

from tests.e2e.conftest import client, endpoint, mock_endpoint

__all__ = ["client", "endpoint", "mock_endpoint"]
