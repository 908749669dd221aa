"""The pip of the Python that made this environment: the environment itself has none."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PYTHON = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


class PipError(Exception):
    """The message is pip's last line."""


def run_pip(command: str, work: Path, requirements: Sequence[str], *options: str | Path, keep: bool = False) -> None:
    """Run a command of pip with these requirements, each with its hash, and without their dependencies.

    work: a folder for pip's files. keep: whether what pip unpacks stays in it. Raises PipError.
    """
    pinned = work / "requirements.txt"
    pinned.write_text("\n".join(requirements))
    words = [PYTHON, "-m", "pip", command, "--no-deps", "--require-hashes", "--requirement", pinned, *options]
    environment = {**os.environ, "TMPDIR": str(work)}
    done = subprocess.run([*words, *(["--no-clean"] if keep else [])], env=environment, capture_output=True, text=True)
    if done.returncode:
        raise PipError((done.stderr.strip() or f"exit status {done.returncode}").splitlines()[-1])
