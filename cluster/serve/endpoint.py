"""The HTTP endpoint: its address and its certificate. Serve's proxy ends TLS."""

import os
import ssl
from typing import Any

from router.options.settings import RouterConfig
from skim_common.errors import SkimError

SETTINGS = {"host": "host", "port": "port", "ssl_certfile": "tls_cert", "ssl_keyfile": "tls_key"}
"""Fields of ray.serve.config.HTTPOptions, and the settings of the router that they are."""


def check_certificate(router: RouterConfig, *, may_be_elsewhere: bool = False) -> None:
    """Raise SkimError if certificate and key are not a pair of readable files on this machine.

    may_be_elsewhere: they may be on other machines alone; then they are checked only if this one has them.
    """
    if router.tls_cert is None or (may_be_elsewhere and not os.path.exists(router.tls_cert)):
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(router.tls_cert, router.tls_key)
    except ssl.SSLError as error:
        fault = f"are not a certificate and its key: {error.reason}"
        raise SkimError(f"router.tls_cert and router.tls_key {fault}") from None
    except OSError as error:
        raise SkimError(f"router.tls_cert or router.tls_key cannot be read: {error.strerror}") from None


def http_options(router: RouterConfig) -> dict[str, str | int]:
    """Arguments of ray.serve.config.HTTPOptions."""
    options: dict[str, str | int] = {"host": router.host, "port": router.port}
    if router.tls_cert and router.tls_key:
        options |= {"ssl_certfile": router.tls_cert, "ssl_keyfile": router.tls_key}
    return options


def check_endpoint(router: RouterConfig, running: Any) -> None:
    """Raise SkimError if the Serve that runs has another endpoint: it keeps the one with which it was started.

    running: a ray.serve.config.HTTPOptions; None: no Serve runs.
    """
    if running is None:
        return
    wanted = http_options(router)
    for option, setting in SETTINGS.items():
        if (has := getattr(running, option)) != wanted.get(option):
            raise SkimError(
                f"router.{setting} is {wanted.get(option)}, but Serve on this Ray cluster was started with {has}, and"
                " keeps its endpoint while it runs: set that, or take it down with `serve shutdown` and deploy again"
            )


def base_url(router: RouterConfig) -> str:
    """The endpoint's URL for a client on this machine."""
    host = "127.0.0.1" if router.host in ("0.0.0.0", "::") else router.host
    return f"{'https' if router.tls_cert else 'http'}://{host}:{router.port}"
