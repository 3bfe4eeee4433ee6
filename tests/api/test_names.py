"""The public names: those of the API page, loaded when they are used; and the how-to page, whose code runs."""

import ast
import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import needs
import numpy as np
import pytest

import dpmpi
from dpmpi.network.launcher import LAPTOP, ROOT

PAGES = Path(dpmpi.__file__).parents[1] / "docs"


def test_the_api_page_has_every_public_name_and_no_other():
    page = (PAGES / "api.md").read_text()
    headings = re.findall(r"^### `(\w+)`$", page, flags=re.MULTILINE)
    assert len(set(headings)) == len(headings)
    assert set(headings) == set(dpmpi.__all__) - {"__version__"}


@pytest.mark.parametrize("package", ["testing", "sklearn"])
def test_the_api_page_names_what_the_other_packages_offer(package):
    needs.package("sklearn", "test")
    names = importlib.import_module(f"dpmpi.{package}").__all__
    [part] = re.findall(rf"^### `dpmpi\.{package}`$(.*?)(?=^##)", (PAGES / "api.md").read_text(), re.M | re.S)
    assert {name for row in re.findall(r"^\| (.*?) \|", part, re.M) for name in re.findall(r"`(\w+)", row)} == {*names}


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


def program(page):
    """The code of a page in order, as one program; a block for a file is written there, and the commands are run."""
    text = (PAGES / page).read_text()
    parts = re.findall(
        r"^```python(?: file=(\S+))?\n(.*?)^```$|^    ((?:mpirun|python|dpmpi) [^\n]*)$", text, re.M | re.S
    )
    lines = []
    for file, code, command in parts:
        if command:
            lines.append(f"subprocess.run({command.split()!r}, check=True, timeout=120)")
        elif file:
            lines.append(f"open({file!r}, 'w').write({code!r})")
        else:
            lines.append(code)
    return lines


def run_program(lines, folder):
    """Run it there; return what it says."""
    (folder / "page.py").write_text("\n".join(["import subprocess", *lines]))
    root = ROOT if os.geteuid() == 0 else {}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "page.py"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        cwd=folder,
        env=os.environ | LAPTOP | root | {"PATH": path},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs.mpi
def test_the_code_of_the_page_runs(tmp_path):
    needs.package("pandas", "test")
    lines = program("python.md")
    assert len(lines) > 12
    said = run_program(lines, tmp_path)
    assert "8 of 8 ledgers check out" in said
    assert "did you mean epsilon?" in said
    assert {"first", "joint", "launched", "started"} <= {one.name for one in (tmp_path / "runs").iterdir()}


def test_the_code_of_the_first_page_runs(tmp_path):
    said = run_program(program("index.md"), tmp_path)
    assert "epsilon 1" in said
    assert len(re.findall(r"\[[\d.e-]+ +[\d.e-]+\]", said)) == 3  # two probabilities for each of three records


def test_the_code_of_the_examples_runs(tmp_path):
    needs.package("sklearn", "test")
    said = run_program(program("examples.md"), tmp_path)
    assert len(re.findall(r"^[a-z ]+, epsilon (?:1.0|5.0|None), [a-z ]+: -?[\d.]+ \+- 0.00$", said, re.M)) == 21
    least = {"digits": 0.5, "diabetes": -0.5, "cancer": 0.6, "ridge": -0.5, "softmax": 0.5}
    for name, figure in least.items():
        [line] = re.findall(rf"^{name} (.+)$", said, re.M)
        assert float(re.sub(r"\[.*?\]", "", line).split()[0]) > figure, line


@needs.mpi
def test_the_script_of_the_plug_in_page_is_short_and_gives_the_same_bits_under_mpi(tmp_path):
    lines = program("plugins.md")[:6]
    code = ast.literal_eval(lines[0].partition(".write(")[2][:-1])
    assert [line.split("'")[1::2][:3] for line in lines[1:3]] == [["python", "mine.py"], ["mpirun", "-n", "8"]]
    classes = {node.name: ast.unparse(node) for node in ast.parse(code).body if isinstance(node, ast.ClassDef)}
    sizes = {name: len(text.splitlines()) for name, text in classes.items()}
    assert sizes["MixedGd"] <= 20
    assert sizes["Absolute"] <= 10
    assert sum(bool(line.strip()) for line in code.splitlines()) - sum(sizes.values()) <= 25
    said = run_program(lines, tmp_path)
    assert "8 of 8 ledgers check out" in said
    assert "Absolute" not in said
    mpi, alone = (np.load(tmp_path / "runs" / name / "model.npz") for name in ("mine", "mine.1"))
    np.testing.assert_array_equal(mpi["x_rank"], alone["x_rank"])
    assert (tmp_path / "runs/mine/report.html").is_file()
    audited = json.loads((tmp_path / "audits/mine/result.json").read_text())
    assert audited["loss"] == "absolute, canaries of label -1 with 1 of the clip at the model 0"
    assert audited["verdict"].startswith("consistent")
