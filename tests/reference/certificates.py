"""Certificates for tests."""

import datetime
import os
import shutil
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Tls(NamedTuple):
    """The arguments of `kv_transfer.draft_tls.CertificateFiles`."""

    cert: str
    key: str
    ca: str
    server_name: str | None = None


def self_signed(folder: Path, *names: x509.GeneralName) -> Tls:
    """A self-signed certificate for `names`. It may sign others."""
    return _certificate(folder, None, names)


def signed_by(authority: Tls, folder: Path, *names: x509.GeneralName) -> Tls:
    """A certificate for `names` that `authority` signed."""
    return _certificate(folder, authority, names)


def install(new: Tls, folder: Path) -> Tls:
    """Copies of the files in `folder`. Each file there is replaced at once."""
    folder.mkdir(exist_ok=True)
    for path, name in zip(new[:3], ("cert.pem", "key.pem", "ca.pem"), strict=True):
        shutil.copyfile(path, folder / "new")
        os.replace(folder / "new", folder / name)
    return Tls(f"{folder}/cert.pem", f"{folder}/key.pem", f"{folder}/ca.pem")


def _certificate(folder: Path, authority: Tls | None, names: tuple[x509.GeneralName, ...]) -> Tls:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, folder.name)])
    issuer, issuers_key = name, key
    if authority:
        issuer = x509.load_pem_x509_certificate(Path(authority.cert).read_bytes()).subject
        loaded = serialization.load_pem_private_key(Path(authority.key).read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        issuers_key = loaded
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    cert = (
        x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .sign(issuers_key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    folder.mkdir()
    (folder / "cert.pem").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    )
    return Tls(f"{folder}/cert.pem", f"{folder}/key.pem", authority.ca if authority else f"{folder}/cert.pem")
