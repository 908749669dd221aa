"""Lets the text part of models that read images run without torchvision, which a CPU build of torch may lack."""

import os
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

NO_IMAGES = "" if find_spec("torchvision") else str(Path(__file__).parent / "no_images")
"""The folder to put first on PYTHONPATH; empty if none is needed."""


def run_without_images(patch: pytest.MonkeyPatch) -> None:
    """For this process, and for those that it spawns until `patch` ends."""
    if NO_IMAGES:
        sys.path.insert(0, NO_IMAGES)  # it stays: transformers remembers that it has found the package
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (NO_IMAGES, os.environ.get("PYTHONPATH")))))
