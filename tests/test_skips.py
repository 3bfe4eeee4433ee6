"""No test is skipped in silence: the table says how many, why, and what brings them, also with several workers."""

import os
import re
import subprocess
import sys
from pathlib import Path

from skips import table

TESTS = Path(__file__).parent
BARE = re.compile(r"""skipif\(|importorskip\(|pytest\.skip\((?!"[^"]+: )""")
PLANTED = """
import pytest

@pytest.mark.parametrize("k", range(3))
@pytest.mark.skipif(True, reason="needs a moon: fly there")
def test_on_the_moon(k): ...

@pytest.mark.slow
def test_for_long(): ...

@pytest.mark.xfail
def test_that_fails(): raise AssertionError

def test_that_finds_out():
    pytest.skip("needs a moon: fly there")

def test_here(): ...
"""


def test_every_reason_names_the_command_that_brings_the_test():
    """Marks come from helpers/needs.py; a test that finds out while it runs spells WHAT: COMMAND."""
    for path in TESTS.rglob("*.py"):
        if path.parent.name != "helpers" and path != Path(__file__):
            assert not BARE.search(path.read_text(encoding="utf-8")), path


def test_the_table_has_one_line_for_each_reason():
    assert table([]) == []
    lines = table(["needs X: get X", "is slow: ./launch/test --slow", "needs X: get X"])
    assert lines[0] == "3 skipped, why, and what brings them:"
    assert lines[1:] == ["  2  needs X  get X", "  1  is slow  ./launch/test --slow"]


TOLD = ["5 skipped, why, and what brings them:"]
TOLD += ["  4  needs a moon  fly there", "  1  is slow       ./launch/test --slow"]


def session(folder, *flags, **variables):
    """Return the lines of a session of the planted tests."""
    (folder / "conftest.py").write_bytes((TESTS / "conftest.py").read_bytes())
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    (folder / "test_planted.py").write_text(PLANTED)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "DPMPI_SKIPS"))}
    environment = clean | {"PYTHONPATH": str(TESTS / "helpers")} | variables
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *flags, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=True)
    return [line.rstrip() for line in done.stdout.splitlines()]


def test_a_session_tells_every_skip_once(tmp_path):
    shown = session(tmp_path)
    begin = shown.index(TOLD[0])
    assert shown[begin : begin + 3] == TOLD


def test_sessions_with_several_workers_leave_their_skips_for_one_table(tmp_path):
    file = tmp_path / "skips"
    file.write_text("needs a moon: fly there\n")
    assert TOLD[0] not in session(tmp_path, "-n", "2", DPMPI_SKIPS=str(file))
    printed = subprocess.check_output([sys.executable, TESTS / "helpers/skips.py", file], text=True, timeout=60)
    assert printed.splitlines()[1:] == [TOLD[1].replace("4", "5"), TOLD[2]]
