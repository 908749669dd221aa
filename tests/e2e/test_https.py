"""`skim serve` with HTTPS."""

import ipaddress
import shutil
import ssl
from pathlib import Path

import httpx
import pytest
import yaml
from cryptography import x509

from tests.e2e.conftest import ROOT, skim_serve
from tests.reference.certificates import self_signed

pytestmark = pytest.mark.nightly


def test_the_endpoint_shows_its_certificate(tmp_path: Path) -> None:
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    ours, other = (self_signed(tmp_path / name, address) for name in ("ours", "other"))
    found = {
        "served_model_name": "skim-demo",
        "router": {"tls_cert": ours.cert, "tls_key": ours.key, "cpus": 0.1},
    }
    for pool in ("speculator", "target"):
        shutil.copytree(ROOT / "demo_models" / pool, tmp_path / pool)
        found[pool] = {"model": str(tmp_path / pool), "engine": "mock", "cpus_per_replica": 0.1}
    config = tmp_path / "serve.yaml"
    config.write_text(yaml.safe_dump(found))
    served = skim_serve(config, tmp_path)
    try:
        served.await_ready()
        url = f"https://127.0.0.1:{served.port}/v1/models"
        assert httpx.get(url, verify=ssl.create_default_context(cafile=ours.cert)).status_code == 200
        with pytest.raises(httpx.ConnectError, match="verify failed"):
            httpx.get(url, verify=ssl.create_default_context(cafile=other.cert))
    finally:
        served.stop()
