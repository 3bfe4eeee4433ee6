"""Progress under mpirun: a bar where its standard error is a terminal, lines or nothing elsewhere."""

import fcntl
import os
import pty
import struct
import sys
import termios
import threading
from pathlib import Path

import needs
import pytest
from launcher import MPIRUN, survivors, wait_until
from parties import python

from dpmpi.network import launcher

FLAGS = ("--data", "synthetic:samples=60,features=3", "--noise", "1", "--no-evaluate")
LONG = ("--rounds", "10000000")


class Screen:
    """A terminal of 100 columns, and all that was written to it."""

    def __init__(self):
        self._reader, self.writer = pty.openpty()
        fcntl.ioctl(self.writer, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
        self.shown = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            while piece := os.read(self._reader, 4096):
                self.shown += piece.decode("utf-8", "replace")
        except OSError:  # nobody has it open any more
            pass

    def bars(self):
        """The states of the bar; what is left of one is written over with spaces."""
        return [part for part in self.shown.split("\r") if part.startswith("round ") and "|" in part]


@pytest.fixture
def screen():
    made = Screen()
    yield made
    os.close(made.writer)


def start(screen, command, *flags):
    return launcher.start([*command, *FLAGS, *flags], launcher.LAPTOP | launcher.ROOT, (screen.writer, screen.writer))


BY_HAND = (str(MPIRUN), "-n", "2", sys.executable, "-m", "dpmpi.run")
OUR_OWN = (sys.executable, "-m", "dpmpi", "run", "-n", "2")


def mpich():
    return (str(Path(python()).with_name("mpiexec")), "-n", "2", python(), "-m", "dpmpi.run")


@needs.mpi
@pytest.mark.parametrize("command", [BY_HAND, OUR_OWN, mpich], ids=["mpirun", "dpmpi run", "mpiexec"])
def test_a_bar_on_a_terminal(screen, tmp_path, command):
    command = command if isinstance(command, tuple) else command()
    process = start(screen, command, *LONG, "--out", str(tmp_path / "run"))
    try:
        assert wait_until(lambda: len(screen.bars()) > 3, 60), screen.shown
    finally:
        launcher.end(process)
    assert wait_until(lambda: not survivors(tmp_path), 10)
    assert all("\n" not in bar for bar in screen.bars()[:3])
    assert max(map(len, screen.bars()[:3])) <= 100
    assert any(" rounds/s  " in bar for bar in screen.bars())
    assert ("starting 2 ranks ..." in screen.shown) == ("run" in command)


@needs.mpi
def test_quiet_runs_are_quiet_on_a_terminal(screen, tmp_path):
    process = start(screen, BY_HAND, "--rounds", "3", "--quiet", "--out", str(tmp_path / "run"))
    assert launcher.finish(process, 60).code == 0
    assert wait_until(lambda: str(tmp_path) in screen.shown, 10)
    assert screen.shown.split() == [str(tmp_path / "run")]


@needs.open_mpi()
def test_lines_where_mpirun_marks_them(screen, tmp_path):
    marking = (str(MPIRUN), "--output", "tag", *BY_HAND[1:])
    process = start(screen, marking, *LONG, "--out", str(tmp_path / "run"))
    try:
        assert wait_until(lambda: " rounds/s  " in screen.shown, 60), screen.shown
    finally:
        launcher.end(process)
    assert screen.bars() == []
