"""The manifests of the examples, and the folder of KubeRay's CRDs."""

import os
from pathlib import Path

import pytest

from cluster.config.load import load_config
from cluster.kuberay.write import manifests

ROOT = Path(__file__).parents[4]
EXAMPLES = ("demo", "hub-names", "llama-70b-1b", "llama-405b", "multi-node")


@pytest.fixture(params=EXAMPLES)
def example(request):
    return load_config(ROOT / "examples" / f"{request.param}.yaml")


@pytest.fixture
def objects(example):
    return [thing for things in manifests(example).values() for thing in things]


@pytest.fixture(scope="session")
def demo():
    """The objects of the smallest example, for tests that break them."""
    return [thing for things in manifests(load_config(ROOT / "examples" / "demo.yaml")).values() for thing in things]


@pytest.fixture
def crds():
    """Folder of the CRDs of KubeRay 1.7: KUBERAY_CRDS, else a folder beside the clone."""
    folder = Path(os.environ.get("KUBERAY_CRDS", ROOT.parent / "shared" / "kuberay"))
    if not list(folder.glob("*rayservices.yaml")):
        pytest.skip(f"KubeRay's CRDs are not in {folder}; KUBERAY_CRDS names another folder")
    return folder
