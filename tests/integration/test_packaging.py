"""Wheel and sdist, built and installed: the command runs, and every file that it needs is there."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import sadih_dask

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both files, built from a copy, so that nothing is left in the clone."""
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(
        ROOT / "sadih_dask", source / "sadih_dask", ignore=shutil.ignore_patterns("__pycache__")
    )
    program = (
        "import sys; from setuptools import build_meta; target = sys.argv[1]\n"
        "build_meta.build_sdist(target); build_meta.build_wheel(target)"  # both change sys.argv
    )
    command = [sys.executable, "-W", "ignore", "-c", program, str(target)]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


def files_of_the_package() -> set[str]:
    package = ROOT / "sadih_dask"
    kept = {".py", ".html", ".css", ".typed"}
    found = (path for path in package.rglob("*") if path.suffix in kept or path.name == "py.typed")
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts}


def test_both_hold_every_file(built: Path) -> None:
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    in_wheel = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        in_sdist = {name.partition("/")[2] for name in archive.getnames()}
    assert files_of_the_package() <= in_wheel
    assert files_of_the_package() <= in_sdist
    assert not [name for name in in_wheel if name.startswith(("tests", "pipelines"))]


def test_the_command_of_an_installed_wheel(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    target = [f"--target={tmp_path}", "--disable-pip-version-check", str(wheel)]
    subprocess.run([*pip, *target], check=True, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    program = "import sadih_dask; print(sadih_dask.__file__)"
    where = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert where.stdout.startswith(str(tmp_path)), where.stdout
    done = subprocess.run(
        [sys.executable, tmp_path / "bin" / "sadih", "--version"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == f"sadih, version {sadih_dask.__version__}\n", done.stderr


def test_all_is_every_extra_of_users() -> None:
    import tomllib

    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    (everything,) = extras["all"]
    named = set(everything.partition("[")[2].rstrip("]").split(","))
    assert named == set(extras) - {"all", "bench", "dev", "docs"}
    told = (ROOT / "pipelines/docs/guide/install.md").read_text()
    assert not [name for name in named if f"`{name}`" not in told]
