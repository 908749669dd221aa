"""Which Rays listen on loopback only, and what the next `ray.init` then takes for the address of this machine."""

import socket

import pytest
from ray._private import ray_constants, services

from actors.ray_hooks.ray_core import init_on_loopback, is_on_loopback

OTHER = "127.0.0.2"


@pytest.fixture(autouse=True)
def own_address(monkeypatch):
    """This machine's address on its network, in place of the real one."""
    monkeypatch.setattr(services, "node_ip_address_from_perspective", lambda address=None: OTHER)
    monkeypatch.setattr(ray_constants, "ENABLE_RAY_CLUSTER", True)


@pytest.mark.parametrize(("listens_on", "only"), [("127.0.0.1", True), ("0.0.0.0", False)])
def test_a_head_that_listens_there_only(listens_on, only):
    with socket.create_server((listens_on, 0)) as head:
        assert is_on_loopback(f"127.0.0.1:{head.getsockname()[1]}") is only


def test_a_head_at_another_address():
    assert not is_on_loopback("10.0.0.1:6379")
    assert not is_on_loopback("ray://127.0.0.1:10001")


def test_auto_finds_the_running_ray(monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as head:
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{head.getsockname()[1]}")
        assert is_on_loopback("auto")


def test_the_next_ray_has_that_address():
    assert services.get_node_ip_address() == OTHER
    init_on_loopback(True)
    assert services.get_node_ip_address() == "127.0.0.1"
    init_on_loopback(False)
    assert services.get_node_ip_address() == OTHER
