"""vLLM's tests, from the source archive of its release, as pip gets it."""

import shutil
import tempfile
from pathlib import Path

from tests.reference.pip import PipError, run_pip

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "peer"
VERSION = "0.29.0"
ARCHIVE = f"vllm=={VERSION} --hash=sha256:c03feb07943ecae9e69e7dc424d7c5569ecf8d1292513aef2a4de67af381cd97"
# vLLM's conftest imports it; nothing else here does.
BESIDE = "tblib==3.2.2 --hash=sha256:26bdccf339bcce6a88b2b5432c988b266ebbe63a4e593f6b578b1d2e723d2b76"
PARTS = ("tests", "examples", "pyproject.toml")
"""Without the folder `vllm`, which would stand in front of the installed one."""


def vllm_tests() -> Path:
    """The folder with PARTS, downloaded once (41 MB). Raises PipError if it cannot be had."""
    folder = BUILD / f"vllm-{VERSION}"
    if folder.exists():
        return folder
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD) as name:
        work = Path(name)
        unpacked, made = _unpacked_archive(work), work / "made"
        made.mkdir()
        for part in PARTS:
            shutil.move(unpacked / part, made / part)
        run_pip("install", work, [BESIDE], "--only-binary", ":all:", "--target", made / "site")
        made.rename(folder)  # the folder appears when it is complete
    return folder


def _unpacked_archive(work: Path) -> Path:
    """pip checks the hash, unpacks, and asks setup.py for metadata. That needs a compiler's tools and may fail."""
    options = ("--no-binary", "vllm", "--no-build-isolation", "--dest", work)
    failure = None
    try:
        run_pip("download", work, [ARCHIVE], *options, keep=True)
    except PipError as error:
        failure = error
    found = [setup.parent for setup in work.glob("*/vllm_*/setup.py")]
    if not found:
        raise PipError(f"pip unpacked no source of vllm {VERSION}: {failure}")
    return found[0]
