"""Ctrl-C at a command is one line and exit code 130, wherever it comes."""

import os
import subprocess
import sys

import pytest

from dpmpi.network.launcher import RANK_VARIABLES

INTERRUPTED_AT_AN_IMPORT = """
import os, runpy, signal, sys
place = sys.argv.pop(1)

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == place:
            exec("os.kill(os.getpid(), signal.SIGINT)")  # after which Python would end itself by SIGINT

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Finder())
runpy.run_module("dpmpi", run_name="__main__", alter_sys=True)
"""
PLAN = ("plan", "--ranks", "2", "--samples-per-rank", "1000", "--dimension", "3", "--epsilon", "1")


def interrupted_at(module, words, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    command = [sys.executable, "-c", INTERRUPTED_AT_AN_IMPORT, module, *words]
    return subprocess.run(command, env=environment | variables, timeout=60, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("dpmpi.commands.dispatch", ["join"]),  # the first that is loaded
        ("dpmpi.network.launcher", ["join"]),
        ("dpmpi.commands.join.command", ["join"]),
        ("dpmpi.commands.join.flags", ["join"]),
        ("numpy", PLAN),
        ("scipy", (*PLAN, "--batch", "10")),  # loaded by the command, when it is needed
    ],
)
def test_while_modules_load(module, words):
    done = interrupted_at(module, words)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "dpmpi: interrupted\n")


@pytest.mark.parametrize("name", RANK_VARIABLES)
def test_of_many_ranks_the_first_one_says_it(name):
    first, second = (interrupted_at("dpmpi.commands.dispatch", ["audit"], **{name: rank}) for rank in "01")
    assert (first.returncode, first.stderr) == (130, "dpmpi: interrupted\n")
    assert (second.returncode, second.stderr) == (130, "")
