"""Mutual TLS of the draft channel. New files take effect at the next connection; connections that are open go on."""

import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from skim_common.errors import SkimError
from skim_common.watched_files import WatchedFiles


@dataclass(frozen=True, slots=True)
class Tls:
    """Mutual TLS: each end shows `cert` and checks the other end's certificate against `ca`. All are PEM files.

    server_name: the name in the servers' certificate; needed if clients use an address that the certificate lacks.
    """

    cert: str
    key: str
    ca: str
    server_name: str | None = None

    @property
    def paths(self) -> tuple[str, str, str]:
        return self.cert, self.key, self.ca


@dataclass(frozen=True, slots=True)
class Certificates:
    """The content of the files of a Tls."""

    cert: bytes
    key: bytes
    ca: bytes


class CertificateFiles(WatchedFiles[Certificates]):
    """The certificates that are valid now. Raises SkimError if the files are not certificates at the start."""

    def __init__(self, tls: Tls) -> None:
        super().__init__(tls.paths, lambda: _read(tls), "the certificates of the draft channel")
        self.server_name = tls.server_name


def client_credentials(files: CertificateFiles) -> grpc.ChannelCredentials:
    """Credentials for one new connection."""
    now = files.current()
    return grpc.ssl_channel_credentials(now.ca, now.key, now.cert)


def server_credentials(files: CertificateFiles) -> grpc.ServerCredentials:
    """Credentials that look at the files before each handshake."""
    used = files.current()

    def renewed() -> grpc.ServerCertificateConfiguration | None:
        nonlocal used
        if (now := files.current()) is used:
            return None
        used = now
        return _server_configuration(now)

    return grpc.dynamic_ssl_server_credentials(_server_configuration(used), renewed, require_client_authentication=True)


def _server_configuration(now: Certificates) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration([(now.key, now.cert)], root_certificates=now.ca)


def _read(tls: Tls) -> Certificates:
    """Raises SkimError if a file cannot be read, if they do not fit together, or if they change meanwhile."""
    found = Certificates(*map(_bytes_of, tls.paths))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The password is for keys that are encrypted: gRPC does not take them, and OpenSSL would ask the terminal.
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        context.load_verify_locations(tls.ca)
    except OSError as e:  # also ssl.SSLError
        raise SkimError(f"the tls files of the draft channel do not fit together ({_reason(e)})") from None
    if found != Certificates(*map(_bytes_of, tls.paths)):
        raise SkimError("the tls files of the draft channel have changed while they were read")
    return found


def _reason(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or type(error).__name__


def _bytes_of(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise SkimError(f"the draft channel cannot read {path} ({e.strerror}): check its tls settings") from None
