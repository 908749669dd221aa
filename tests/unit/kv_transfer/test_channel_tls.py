"""Both ends authenticate with certificates, which `self_signed` creates."""

import ipaddress

import pytest
from cryptography import x509

from kv_transfer.channel import Tls
from kv_transfer.errors import SkimError
from tests.reference.certificates import self_signed
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


def test_files_that_are_no_certificates(tls, tmp_path):
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    wrong = Tls(str(nonsense), tls.key, tls.ca)
    with pytest.raises(SkimError, match="tls"), serving(honest, tls=wrong):
        pass
    with serving(honest, tls=tls) as address, client(address, tls=wrong) as it:
        assert it.exchange(REQUEST) is None
