"""TLS of the HTTP endpoint: the certificate is checked first, and Serve's own proxy gets it."""

import ipaddress

import pytest
from cryptography import x509
from ray.serve.config import HTTPOptions

from cluster.config.load import config_from_flags
from cluster.serve.deployment import base_url, check_endpoint, http_options
from cluster.serve.preflight import check_certificate
from skim_common.errors import SkimError
from tests.reference.certificates import self_signed
from tests.unit.conftest import MODELS

DEMO = MODELS.parent / "examples" / "demo.yaml"


@pytest.fixture
def files(tmp_path):
    made = self_signed(tmp_path / "ours", x509.IPAddress(ipaddress.ip_address("127.0.0.1")))
    return {"router.tls_cert": made.cert, "router.tls_key": made.key}


def router(files):
    return config_from_flags(DEMO, files).router


def test_a_pair_is_taken_and_given_to_serve(files):
    secured = router(files)
    check_certificate(secured)
    options = HTTPOptions(**http_options(secured))
    assert (options.ssl_certfile, options.ssl_keyfile) == (files["router.tls_cert"], files["router.tls_key"])
    assert base_url(secured) == "https://127.0.0.1:8000"


def test_without_a_certificate_it_is_http():
    plain = router({"router.host": "0.0.0.0"})
    check_certificate(plain)
    assert HTTPOptions(**http_options(plain)).ssl_certfile is None
    assert base_url(plain) == "http://127.0.0.1:8000"


def test_a_relative_file_is_beside_the_config():
    secured = router({"router.tls_cert": "c.pem", "router.tls_key": "k.pem"})
    assert secured.tls_cert == str(DEMO.parent / "c.pem")
    check_certificate(secured, may_be_elsewhere=True)
    with pytest.raises(SkimError, match="cannot be read: No such file") as raised:
        check_certificate(secured)
    assert str(DEMO.parent) not in str(raised.value)


def test_two_files_that_are_no_pair_are_refused(files, tmp_path):
    other = self_signed(tmp_path / "other", x509.DNSName("other")).key
    with pytest.raises(SkimError, match="are not a certificate and its key"):
        check_certificate(router(files | {"router.tls_key": other}))


def test_one_of_two_files_is_refused(files):
    with pytest.raises(SkimError, match="tls_cert and tls_key must be set together"):
        router({"router.tls_cert": files["router.tls_cert"]})


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"router.port": 8001}, r"router\.port is 8001, but Serve on this Ray cluster was started with 8000, and"),
        ({"router.host": "0.0.0.0"}, r"router\.host is 0\.0\.0\.0, but Serve .* started with 127\.0\.0\.1, and"),
        ("tls", r"router\.tls_cert is \S+, but Serve .* was started with None"),
    ],
)
def test_a_running_serve_keeps_its_endpoint(files, change, told):
    """Ray ignores other HTTP options of `serve.start` then, with a warning that nobody sees."""
    check_endpoint(router({}), None)
    check_endpoint(router({}), HTTPOptions(**http_options(router({}))))
    with pytest.raises(SkimError, match=told):
        check_endpoint(router(files if change == "tls" else change), HTTPOptions(host="127.0.0.1", port=8000))
