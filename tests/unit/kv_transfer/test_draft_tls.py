"""Both ends authenticate with certificates, which `self_signed` creates."""

import ipaddress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from kv_transfer.draft_tls import CertificateFiles
from skim_common.errors import SkimError
from tests.reference.certificates import Tls, self_signed
from tests.unit.kv_transfer.channel_peer import HOST, REQUEST, client, honest, serving


@pytest.fixture
def tls(tmp_path) -> Tls:
    return self_signed(tmp_path / "ours", x509.IPAddress(ipaddress.ip_address(HOST)))


@pytest.fixture
def other(tmp_path) -> Tls:
    return self_signed(tmp_path / "other", x509.IPAddress(ipaddress.ip_address(HOST)))


def test_both_with_the_same_authority(tls):
    with serving(honest, tls=tls, token="secret") as address, client(address, tls=tls, token="secret") as it:
        assert it.exchange(REQUEST)


def test_tls_does_not_replace_the_token(tls):
    with serving(honest, tls=tls, token="secret") as address, client(address, tls=tls) as it:
        assert it.exchange(REQUEST) is None


def test_a_certificate_for_a_name(tmp_path):
    named = self_signed(tmp_path / "named", x509.DNSName("drafts.skim"))
    by_name = Tls(named.cert, named.key, named.ca, server_name="drafts.skim")
    with serving(honest, tls=named) as address:
        with client(address, tls=by_name) as it:
            assert it.exchange(REQUEST)
        with client(address, tls=named) as it:
            assert it.exchange(REQUEST) is None


def test_who_cannot_prove_it_gets_nothing(tls, other):
    with serving(honest, tls=tls) as address:
        strangers = [None, other, Tls(tls.cert, tls.key, other.ca), Tls(other.cert, other.key, tls.ca)]
        for stranger in strangers:
            with client(address, tls=stranger) as it:
                assert it.exchange(REQUEST) is None
                assert it.counters["breaker_opened"] == 1
        with client(address, tls=tls) as it:
            assert it.exchange(REQUEST)


def test_a_server_without_tls(tls):
    with serving(honest) as address, client(address, tls=tls) as it:
        assert it.exchange(REQUEST) is None


def test_files_that_are_not_there(tls, tmp_path):
    gone = Tls(tls.cert, f"{tmp_path}/gone.pem", tls.ca)
    with pytest.raises(SkimError, match=r"cannot read .*gone\.pem"), client("a:1", tls=gone):
        pass
    with pytest.raises(SkimError, match=r"cannot read .*gone\.pem"), serving(honest, tls=gone):
        pass


def test_files_that_do_not_fit_together(tls, other, tmp_path):
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for wrong in (
        Tls(str(nonsense), tls.key, tls.ca),
        Tls(tls.cert, tls.key, str(nonsense)),
        Tls(tls.cert, other.key, tls.ca),
    ):
        with pytest.raises(SkimError, match="tls files"):
            CertificateFiles(*wrong)


def test_an_encrypted_key_is_refused_without_a_question(tls, tmp_path):
    key = serialization.load_pem_private_key(Path(tls.key).read_bytes(), None)
    secret = serialization.BestAvailableEncryption(b"secret")
    locked = tmp_path / "locked.pem"
    locked.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(SkimError, match="tls files"):
        CertificateFiles(tls.cert, str(locked), tls.ca)
