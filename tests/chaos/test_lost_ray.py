"""A `skim serve` whose Ray dies says so in one line and ends with an error status; nothing keeps its port."""

from pathlib import Path

import psutil
import pytest
import yaml

from tests.chaos.conftest import SETTINGS
from tests.chaos.test_killed_ray import listening, until
from tests.e2e.conftest import Served, skim_serve

pytestmark = pytest.mark.nightly


@pytest.fixture
def alone(tmp_path: Path) -> Served:
    """A `skim serve` of this test's own."""
    config = tmp_path / "mock.yaml"
    config.write_text(yaml.safe_dump({**SETTINGS, "target": {**SETTINGS["target"], "replicas": 1}}))
    served = skim_serve(config, tmp_path)
    served.await_ready()
    return served


def test_serve_ends_with_its_ray(alone: Served) -> None:
    [raylet] = [p for p in psutil.Process(alone.process.pid).children(recursive=True) if p.name() == "raylet"]
    raylet.kill()
    assert alone.process.wait(timeout=120) == 1
    told = "skim: Ray has ended, because its process raylet has died: start `skim serve` again"
    assert alone.log.read_text().splitlines().count(told) == 1
    assert until(lambda: not listening(alone.port))
