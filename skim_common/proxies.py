"""Calls that go directly, whatever proxy the environment names: to this machine, and gRPC from pod to pod. A proxy
cannot reach either.
"""

import os
import ssl
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

LOOPBACK = ("localhost", "127.0.0.1", "::1")

DIRECT_GRPC = {"grpc_proxy": ""}
"""The environment variable of gRPC that comes before all others; empty, it means no proxy."""


def call_directly() -> None:
    """Make the libraries of this process, and of those that it starts, reach loopback addresses without a proxy.

    gRPC uses none at all: Ray Serve's calls between replicas are gRPC, and its channels name no option for it.
    """
    own = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    names = [name.strip() for name in own.split(",") if name.strip()]
    if "*" not in names:  # it is known only where it stands alone
        own = ",".join(dict.fromkeys([*names, *LOOPBACK]))
    os.environ.update({"no_proxy": own, "NO_PROXY": own, **DIRECT_GRPC})


def is_loopback(url: str) -> bool:
    """Whether the host of `url` is this machine itself."""
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:  # no URL
        return False
    try:
        address = ip_address(host)
    except ValueError:
        return f".{host}".endswith(".localhost")
    return address.is_loopback or address.is_unspecified


def client_options(url: str) -> dict[str, Any]:
    """Arguments of an httpx or httpx2 client that calls `url`: on a loopback address it asks no proxy. NO_PROXY is not
    enough: they read no ranges there, and a SOCKS proxy that they would not use is an error."""
    if not is_loopback(url):
        return {}
    # Without `trust_env`, httpx does not read SSL_CERT_FILE; OpenSSL itself does.
    certificates = {"verify": ssl.create_default_context()} if urlsplit(url).scheme == "https" else {}
    return {"trust_env": False, **certificates}
