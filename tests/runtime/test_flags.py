"""Flags are read without argparse where it would find nothing to say, and as it reads them."""

import subprocess
import sys

import pytest

from dpmpi.errors import ConfigError
from dpmpi.runtime.flag_parser import parse_flags
from dpmpi.runtime.flags import flags_of, read_plainly

PLAIN = [
    [],
    ["--rounds", "40", "--epsilon", "1", "--quiet"],
    ["--rounds=40", "--no-quiet", "--quiet", "--out", "a b"],
    ["--eta=-1", "--beta", "auto", "--lipschitz", "auto", "--rounds", "auto"],
    ["--algorithm", "dp-dda", "--gamma", "3", "--mixes", "auto", "--no-evaluate"],
    ["--algorithm", "dp-dda", "--noise-schedule", "optimal"],
    ["--rounds", "3", "--rounds", "4"],
    ["--ledger", "", "--loopback", "4", "--seal"],
    ["--resume", "runs/x", "--deadline", "3"],
    ["--data", "synthetic:samples=10", "--data", "libsvm:x=y"],
    ["--plugin", "examples.py", "--plugin=other.py"],
]
ODD = [
    ["-h"],
    ["--help"],
    ["--rounds", "--quiet"],
    ["--rounds"],
    ["--eta", "-1"],
    ["--round", "3"],
    ["--quiet=1"],
    ["--out="],
    ["--out=--"],
    ["--rounds", "many"],
    ["rounds"],
    ["--", "--rounds", "3"],
    ["--plugin_digest", "aa"],
    ["--gamma", "3"],  # of another method than the default one
    ["--algorithm", "dp-dda", "--noise-schedule", "rising"],
]


@pytest.mark.parametrize("argv", PLAIN)
def test_plain_flags_are_read_as_argparse_reads_them(argv, monkeypatch):
    if "--plugin" in argv:  # which files there are is not the question
        monkeypatch.setattr("dpmpi.runtime.flags.resolve", lambda *_: ())
    assert read_plainly(argv) == parse_flags(argv)


@pytest.mark.parametrize("argv", ODD)
def test_all_else_is_left_to_argparse(argv):
    assert read_plainly(argv) is None


def test_what_is_wrong_is_said_by_argparse():
    with pytest.raises(ConfigError, match=r"unknown flag --round .*--rounds"):
        flags_of(["--round", "3"])


def test_a_run_does_not_import_argparse(tmp_path):
    code = "import sys, dpmpi.run; dpmpi.run.main(sys.argv[1:]); assert 'argparse' not in sys.modules"
    flags = ["--loopback", "2", "--rounds", "2", "--data", "synthetic:samples=100", "--noise", "1", "--quiet"]
    command = [sys.executable, "-c", code, *flags, "--out", str(tmp_path / "run")]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert (tmp_path / "run" / "summary.json").exists()
