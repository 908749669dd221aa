"""Mutual TLS of the draft channel. New files take effect at the next connection; connections that are open go on."""

import ssl
from pathlib import Path
from typing import NamedTuple

import grpc

from skim_common.errors import SkimError
from skim_common.watched_files import WatchedFiles


class Tls(NamedTuple):
    """Mutual TLS: each end shows `cert` and checks the other end's certificate against `ca`. All are PEM files.

    server_name: the name in the servers' certificate; needed if clients use an address that the certificate lacks.
    """

    cert: str
    key: str
    ca: str
    server_name: str | None = None


Certificates = tuple[bytes, bytes, bytes]
"""The content of `cert`, `key` and `ca`."""


class CertificateFiles(WatchedFiles[Certificates]):
    """The certificates that are valid now. Raises SkimError if the files are not certificates at the start."""

    def __init__(self, tls: Tls) -> None:
        super().__init__(tls[:3], lambda: _read(tls), "the certificates of the draft channel")
        self.server_name = tls.server_name


def client_credentials(files: CertificateFiles) -> grpc.ChannelCredentials:
    """Credentials for one new connection."""
    cert, key, ca = files.current()
    return grpc.ssl_channel_credentials(ca, key, cert)


def server_credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    """Credentials that look at the files before each handshake."""

    def current() -> grpc.ServerCertificateConfiguration:
        cert, key, ca = files.current()
        return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)

    return grpc.dynamic_ssl_server_credentials(current(), current, require_client_authentication=True)


def _read(tls: Tls) -> Certificates:
    """Raises SkimError if a file cannot be read, or if they do not fit together."""
    try:
        cert, key, ca = (Path(path).read_bytes() for path in (tls.cert, tls.key, tls.ca))
    except OSError as e:
        raise SkimError(f"the draft channel cannot read {e.filename} ({e.strerror}): check its tls settings") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The password is for keys that are encrypted: gRPC does not take them, and OpenSSL would ask the terminal.
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        context.load_verify_locations(tls.ca)
    except OSError as e:  # also ssl.SSLError
        reason = getattr(e, "reason", None) or e.strerror or type(e).__name__
        raise SkimError(f"the tls files of the draft channel do not fit together ({reason})") from None
    return cert, key, ca
