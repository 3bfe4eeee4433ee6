"""The public names: those of the API page, loaded when they are used; and the how-to page, whose code runs."""

import ast
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import needs
import pytest

import dpmpi
from dpmpi.network.launcher import LAPTOP, ROOT

PAGES = Path(dpmpi.__file__).parents[1] / "docs"


def test_the_api_page_has_every_public_name_and_no_other():
    page = (PAGES / "api.md").read_text()
    headings = re.findall(r"^### `(\w+)`$", page, flags=re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert set(headings) == set(dpmpi.__all__) - {"__version__"}


def test_every_name_is_there_and_typed_as_it_is_loaded():
    for name in dpmpi.__all__:
        assert getattr(dpmpi, name) is not None
        assert name in dir(dpmpi)
    tree = ast.parse(Path(dpmpi.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    typed = {alias.name: statement.module for statement in block.body for alias in statement.names}
    assert typed == dpmpi._HOME
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        dpmpi.trian  # noqa: B018


def test_a_type_checker_knows_the_names(tmp_path):
    program = tmp_path / "program.py"
    program.write_text("import dpmpi\nreveal_type(dpmpi.train)\nx: dpmpi.Result = dpmpi.simulate([], epsilon=1.0)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", program],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=PAGES.parent,
    )
    assert done.returncode == 0, done.stdout
    assert "dpmpi.api.result.Result" in done.stdout


@pytest.mark.parametrize(
    ("told", "threads"),
    [
        ({}, None),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, None),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "4"}, "1"),
        ({"MPI_LOCALNRANKS": "2"}, "1"),
        ({"MPI_LOCALNRANKS": "2", "OPENBLAS_NUM_THREADS": "3"}, "3"),
    ],
)
def test_ranks_that_share_a_host_have_one_thread_each(told, threads):
    environment = {name: value for name, value in os.environ.items() if not name.endswith(("_THREADS", "LOCAL_SIZE"))}
    code = "import dpmpi, os, sys; assert 'numpy' not in sys.modules; print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment | told, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == str(threads)


def test_the_import_is_quick():
    """Measured as the difference to an empty program, the smallest of several: other processes only add to it."""

    def seconds(code):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
        return time.perf_counter() - begin

    turns = [(seconds("import dpmpi"), seconds("pass")) for _ in range(5)]
    assert min(whole for whole, _ in turns) - min(empty for _, empty in turns) < 0.06


@needs.mpi
def test_the_code_of_the_page_runs(tmp_path):
    """In order, in one program; a block for a file is written there, and the commands in between are run."""
    needs.package("pandas", "test")
    text = (PAGES / "python.md").read_text()
    parts = re.findall(
        r"^```python(?: file=(\S+))?\n(.*?)^```$|^    ((?:mpirun|python|dpmpi) [^\n]*)$", text, re.M | re.S
    )
    lines = []
    for file, code, command in parts:
        if command:
            words = command.split()
            lines.append(f"subprocess.run({words!r}, check=True, timeout=120)")
        elif file:
            lines.append(f"open({file!r}, 'w').write({code!r})")
        else:
            lines.append(code)
    assert len(parts) > 12
    (tmp_path / "page.py").write_text("\n".join(["import subprocess", *lines]))
    root = ROOT if os.geteuid() == 0 else {}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "page.py"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=tmp_path,
        env=os.environ | LAPTOP | root | {"PATH": path},
    )
    assert done.returncode == 0, done.stderr
    assert "8 of 8 ledgers check out" in done.stdout
    assert "did you mean epsilon?" in done.stdout
    assert {"first", "joint", "launched", "started"} <= {one.name for one in (tmp_path / "runs").iterdir()}
