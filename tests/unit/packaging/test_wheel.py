"""The wheel, installed into an environment of its own, works outside the checkout.

The environment sees the packages of the running one, which is how the lock's packages are there without a network. The
editable installation of the running environment is not seen: `.pth` files work in an environment's own folder only.
"""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = sorted({path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests", "tools"})
FILES = ("pyproject.toml", "README.md", "LICENSE")
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


def run(*command: object, cwd: Path) -> str:
    """What `command` prints, in an environment without Python's own variables."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    ran = subprocess.run(
        list(map(str, command)), cwd=cwd, env=environment | {"COLUMNS": "200"}, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder outside the checkout."""
    return tmp_path_factory.mktemp("outside")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as setuptools writes into the folder that it builds."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    build = f"from setuptools import build_meta; build_meta.build_wheel({str(out)!r})"
    run(sys.executable, "-c", build, cwd=source)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel; gives its folder."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    pip = [python_with_pip(), "-m", "pip", "--disable-pip-version-check", "--python", python]
    run(*pip, "install", "--no-deps", "--no-index", "--no-compile", wheel, cwd=folder)
    # Only now: pip must not find the editable installation and replace it.
    (site_packages(folder) / "lock.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder


def python_with_pip() -> str:
    """A Python outside of .venv, which has no pip of its own (requirements/install.sh)."""
    for python in (sys._base_executable, "python3.11", "python3"):
        if (
            shutil.which(python)
            and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
        ):
            return python
    pytest.fail("no Python with pip outside of the environment; on Debian: apt install python3-pip")


def site_packages(environment: Path) -> Path:
    return Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))


def test_the_wheel_holds_every_package_and_its_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == set(PACKAGES)
    for package in PACKAGES:
        sources = {str(file.relative_to(ROOT)) for file in (ROOT / package).rglob("*.py")}
        assert sources <= set(names)
    assert {"cluster/monitoring/dashboard.json", "cluster/monitoring/rules.yaml", "skim/py.typed"} <= set(names)
    assert "cluster/explain/template.html" in names
    assert "speculator_service/scoring/profiles/qwen2.5-coder-0.5b-instruct.json" in names
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_the_wheel_names_its_command_and_its_plugin_of_vllm(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    (entry_points,) = (name for name in archive.namelist() if name.endswith("/entry_points.txt"))
    assert archive.read(entry_points).decode().split("\n\n")[:2] == [
        "[console_scripts]\nskim = cluster.commands.cli:main",
        "[vllm.general_plugins]\nskim = vllm_hooks.start_up:register\n",
    ]


def test_packages_are_imported_from_the_wheel(environment: Path, outside: Path) -> None:
    code = f"import {', '.join(PACKAGES)}\nfor package in ({', '.join(PACKAGES)}):\n    print(package.__file__)"
    files = run(environment / "bin" / "python", "-c", code, cwd=outside).splitlines()
    assert files == [str(site_packages(environment) / package / "__init__.py") for package in PACKAGES]


def test_the_python_api_is_there(environment: Path, outside: Path) -> None:
    code = "import skim; print(skim.__file__, skim.Pair.__name__)"
    found = run(environment / "bin" / "python", "-c", code, cwd=outside)
    assert found == f"{site_packages(environment) / 'skim' / '__init__.py'} Pair\n"


def test_the_command_runs(environment: Path, outside: Path) -> None:
    skim = environment / "bin" / "skim"
    assert re.search(r"^ Usage: skim ", run(skim, "--help", cwd=outside), re.MULTILINE)
    assert run(skim, "--version", cwd=outside) == f"skim {VERSION}\n"


def test_vllm_finds_the_plugin_of_the_wheel(environment: Path, outside: Path) -> None:
    code = """from importlib.metadata import entry_points
(plugin,) = entry_points(group="vllm.general_plugins", name="skim")
print(plugin.dist.locate_file(""), plugin.load().__module__)"""
    found = run(environment / "bin" / "python", "-c", code, cwd=outside)
    assert found == f"{site_packages(environment)} vllm_hooks.start_up\n"
