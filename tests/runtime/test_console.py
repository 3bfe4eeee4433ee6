"""Lines that nobody can read end nothing."""

import io
import os
import subprocess
import sys

import needs
import pytest

from dpmpi.commands.dispatch import main
from dpmpi.runtime.output.console import say


def test_a_reader_who_has_gone_is_not_missed():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as stream:
        say("one", stream)
        say("two", stream)


def test_letters_that_a_terminal_does_not_know_are_spelt():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii")
    say("runs/é", stream)
    assert raw.getvalue() == b"runs/\\xe9\n"


@needs.linux("/dev/full")
def test_a_run_whose_table_cannot_be_written_is_a_run(tmp_path):
    flags = ("--loopback", "2", "--rounds", "5", "--data", "synthetic:samples=20,features=2")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "dpmpi.run", *flags, "--out", str(tmp_path / "run")]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "run" / "summary.json").exists()
    assert not (tmp_path / "run" / "ended.txt").exists()


def test_a_command_whose_reader_has_gone_ends_quietly():
    plan = "plan --ranks 4 --samples-per-rank 100 --dimension 5 --rounds 10 --noise 1"
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m dpmpi {plan} | true; exit ${{PIPESTATUS[0]}}"],
        stderr=subprocess.PIPE, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (KeyboardInterrupt(), 130, "dpmpi: interrupted"),
        (FileExistsError(17, "File exists", "keys"), 2, "dpmpi: keys: File exists"),
        (MemoryError("35 PiB"), 2, "dpmpi: not enough memory: 35 PiB"),
    ],
)
def test_what_ends_a_command_is_one_line(monkeypatch, capfd, error, code, said):
    def fail(_argv):
        raise error

    monkeypatch.setattr("dpmpi.commands.dispatch.hush", lambda stream: None)
    monkeypatch.setattr("dpmpi.commands.plan.main", fail)
    assert main(["plan"]) == code
    assert capfd.readouterr().err.strip() == said
