"""The HTTP endpoint: its address and its certificate. Serve's proxy ends TLS."""

import ssl

from router.options.settings import RouterConfig
from skim_common.errors import SkimError


def check_certificate(router: RouterConfig) -> None:
    """Raise SkimError if certificate and key are not a pair of readable files on this machine."""
    if router.tls_cert is None:
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


def base_url(router: RouterConfig) -> str:
    """The endpoint's URL for a client on this machine."""
    host = "127.0.0.1" if router.host in ("0.0.0.0", "::") else router.host
    return f"{'https' if router.tls_cert else 'http'}://{host}:{router.port}"
