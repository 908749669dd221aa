"""New certificates on disk: new connections use them, open ones go on, and files that are wrong change nothing."""

import ipaddress
import logging
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509

from tests.reference.certificates import Tls, install, self_signed, signed_by
from tests.unit.kv_transfer.channel_peer import HOST, REQUEST, client, honest, serving, until

ADDRESS = x509.IPAddress(ipaddress.ip_address(HOST))
LOGGER = "skim_common.watched_files"


@pytest.fixture
def authority(tmp_path) -> Tls:
    return self_signed(tmp_path / "authority", ADDRESS)


@pytest.fixture
def first(tmp_path, authority) -> Tls:
    return signed_by(authority, tmp_path / "first", ADDRESS)


@pytest.fixture
def second(tmp_path, authority) -> Tls:
    """Of the same authority."""
    return signed_by(authority, tmp_path / "second", ADDRESS)


@pytest.fixture
def foreign(tmp_path) -> Tls:
    """Of another authority."""
    return signed_by(self_signed(tmp_path / "other authority", ADDRESS), tmp_path / "foreign", ADDRESS)


def shown(address: str, trusted: Tls) -> str:
    """The name in the certificate that a new connection gets."""
    context = ssl.create_default_context(cafile=trusted.ca)
    context.load_cert_chain(trusted.cert, trusted.key)
    context.set_alpn_protocols(["h2"])
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as plain, context.wrap_socket(plain, server_hostname=host) as it:
        names = dict(pair for part in it.getpeercert()["subject"] for pair in part)
        return names["commonName"]


def errors(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


def test_a_new_certificate_of_the_same_authority(tmp_path, first, second):
    live = install(first, tmp_path / "live")
    with serving(honest, tls=live) as address, client(address, tls=first) as running:
        assert running.exchange(REQUEST)
        assert shown(address, first) == "first"
        install(second, tmp_path / "live")
        assert shown(address, first) == "second"
        assert running.exchange(REQUEST)
        with client(address, tls=second) as late:
            assert late.exchange(REQUEST)


def test_a_new_authority_at_both_ends(tmp_path, first, foreign):
    live = install(first, tmp_path / "live")
    with serving(honest, tls=live) as address, client(address, tls=live) as running:
        assert running.exchange(REQUEST)
        install(foreign, tmp_path / "live")
        assert shown(address, foreign) == "foreign"
        assert running.exchange(REQUEST)
        running.close()
        assert running.exchange(REQUEST)
        with client(address, tls=first) as stranger:
            assert stranger.exchange(REQUEST) is None


def test_a_client_takes_its_new_files(tmp_path, first, foreign):
    """The server's authority has changed; a client of before is known again after its own files have."""
    live = install(first, tmp_path / "live")
    with serving(honest, tls=foreign) as address, client(address, tls=live) as it:
        assert it.exchange(REQUEST) is None
        install(foreign, tmp_path / "live")
        it.close()
        until(lambda: it.exchange(REQUEST))  # the breaker pauses


@pytest.mark.parametrize("name", ["cert.pem", "key.pem", "ca.pem"])
@pytest.mark.parametrize("content", ["nonsense", None])
def test_wrong_files_change_nothing(tmp_path, first, second, caplog, name, content):
    live = install(first, tmp_path / "live")
    caplog.set_level(logging.INFO, LOGGER)
    file = Path(tmp_path, "live", name)
    with serving(honest, tls=live) as address:
        file.unlink()
        if content:
            file.write_text(content)
        assert [shown(address, first) for _ in range(3)] == ["first"] * 3
        assert len(errors(caplog)) == 1
        assert "stay as they were" in errors(caplog)[0]
        install(second, tmp_path / "live")
        assert shown(address, first) == "second"
    assert len(errors(caplog)) == 1


def test_a_certificate_without_its_key_waits_for_it(tmp_path, first, second):
    """Two files are never replaced at once."""
    live = install(first, tmp_path / "live")
    with serving(honest, tls=live) as address:
        install(Tls(second.cert, first.key, first.ca), tmp_path / "live")
        assert shown(address, first) == "first"
        install(second, tmp_path / "live")
        assert shown(address, first) == "second"
