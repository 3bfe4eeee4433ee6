"""`use_environment` of launch/environment.sh from any folder, with a Python that only notes what it is asked for."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import dpmpi

ROOT = Path(dpmpi.__file__).parents[1]
PYTHON = """#!/bin/sh
echo "$@" >> {log}
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi
"""
SHELLS = [path for path in map(shutil.which, ("bash", "zsh")) if path]


@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
@pytest.mark.parametrize(
    ("given", "place"),
    [
        ("", "the repository/.venv"),
        (".venv-other report", "the repository/.venv-other"),
        ('"$ABOVE/absolute" report', "absolute"),
    ],
)
def test_the_environment_is_that_of_the_scripts_folder(tmp_path, shell, given, place):
    repository, elsewhere, log = tmp_path / "the repository", tmp_path / "elsewhere", tmp_path / "log"
    folder = tmp_path / place
    (repository / "launch").mkdir(parents=True)
    elsewhere.mkdir()
    shutil.copy(ROOT / "launch/environment.sh", repository / "launch")
    (repository / "pyproject.toml").touch()
    python = tmp_path / "python"
    python.write_text(PYTHON.format(log=log))
    python.chmod(0o755)
    script = f". '../the repository/launch/environment.sh' && use_environment {given} && command -v python && pwd"

    def asked():
        done = subprocess.run(
            [shell, "-euc", script],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
            cwd=elsewhere,
            env=os.environ | {"PYTHON": str(python), "CDPATH": str(tmp_path), "ABOVE": str(tmp_path)},
        )
        assert done.stdout.splitlines() == [str(folder / "bin/python"), str(elsewhere)]
        words = log.read_text().splitlines()
        log.unlink()
        return words

    first, second = asked(), asked()
    assert f"-m venv {folder}" in first
    assert any(f"--editable {repository}[" in line for line in first)
    assert first[-1] == second[-1] == f"-m compileall -q {repository / 'dpmpi'}"
    assert not any("venv" in line.split() for line in second)  # the second time installs nothing
    assert not list(elsewhere.iterdir())
    assert len(list(folder.glob(".installed-*"))) == 1
