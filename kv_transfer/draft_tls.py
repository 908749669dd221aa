"""Mutual TLS of the draft channel. New files take effect at the next connection; connections that are open go on."""

import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from skim_common.errors import SkimError
from skim_common.watched_files import WatchedFiles

Certificates = tuple[bytes, bytes, bytes]
"""The content of `cert`, `key` and `ca`."""


class CertificateFiles(WatchedFiles[Certificates]):
    """PEM files: each end shows `cert` and checks the other end's certificate against `ca`.

    server_name: the name in the servers' certificate; needed if clients use an address that the certificate lacks.
    Raises SkimError if the files are not certificates at the start.
    """

    def __init__(self, cert: str, key: str, ca: str, server_name: str | None = None) -> None:
        files = cert, key, ca
        super().__init__(files, lambda: _read(*files), "the certificates of the draft channel")
        self.server_name = server_name

    def channel(self, address: str, options: Sequence[tuple[str, Any]]) -> grpc.Channel:
        """A new connection to `address`, host:port."""
        cert, key, ca = self.current()
        name = [("grpc.ssl_target_name_override", self.server_name)] if self.server_name else []
        return grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, cert), [*options, *name])

    def server_credentials(self) -> grpc.ServerCredentials:
        """They look at the files before each handshake."""

        def current() -> grpc.ServerCertificateConfiguration:
            cert, key, ca = self.current()
            return grpc.ssl_server_certificate_configuration([(key, cert)], root_certificates=ca)

        return grpc.dynamic_ssl_server_credentials(current(), current, require_client_authentication=True)


def _read(cert: str, key: str, ca: str) -> Certificates:
    """Raises SkimError if a file cannot be read, or if they do not fit together."""
    try:
        contents = Path(cert).read_bytes(), Path(key).read_bytes(), Path(ca).read_bytes()
    except OSError as e:
        raise SkimError(f"the draft channel cannot read {e.filename} ({e.strerror}): check its tls settings") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        # The password is for keys that are encrypted: gRPC does not take them, and OpenSSL would ask the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
        context.load_verify_locations(ca)
    except OSError as e:  # also ssl.SSLError
        reason = getattr(e, "reason", None) or e.strerror or type(e).__name__
        raise SkimError(f"the tls files of the draft channel do not fit together ({reason})") from None
    return contents
