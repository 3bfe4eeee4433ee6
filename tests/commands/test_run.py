"""`dpmpi run -n N`: the command that starts mpirun itself."""

import os
import subprocess
import sys

import needs
import pytest

import dpmpi
from dpmpi.commands.dispatch import main
from dpmpi.commands.run import started_by
from dpmpi.errors import ConfigError


def test_how_many_ranks_and_by_what():
    assert started_by(["-n", "20", "--epsilon", "1"]) == (20, None, ["--epsilon", "1"])
    assert started_by(["--launcher", "srun -n {ranks}", "-n", "2"]) == (2, "srun -n {ranks}", [])
    assert started_by(["--loopback", "3"]) == (None, None, ["--loopback", "3"])


@pytest.mark.parametrize(
    "words", [["-n"], ["-n", "0"], ["-n", "x"], ["--epsilon", "1", "-n", "4"], ["--launcher", "x"]]
)
def test_what_cannot_be_started(words):
    with pytest.raises(ConfigError, match="-n"):
        started_by(words)


def test_a_mistyped_flag_is_said_once(capfd):
    assert main(["run", "-n", "4", "--epsilonn", "1"]) == 2
    assert (
        capfd.readouterr().err == "dpmpi: unknown flag --epsilonn (did you mean --epsilon?); --help lists the flags\n"
    )


@needs.mpi
def test_ranks_from_an_empty_folder_without_any_settings_of_mpi(tmp_path):
    told = ("PRTE_", "OMPI_", "OMP_", "OPENBLAS_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(told)}

    def started(*words):
        command = [sys.executable, "-m", "dpmpi", "run", *words]
        return subprocess.run(
            command, cwd=tmp_path, env=environment, timeout=90, capture_output=True, text=True, check=False
        )

    done = started("-n", "4", "--epsilon", "1")
    assert done.returncode == 0, done.stderr
    assert "4 ranks" in done.stdout
    [run] = (tmp_path / "runs").iterdir()
    assert dpmpi.Result(run).privacy.epsilon == pytest.approx(1.0, rel=0.01)
    failed = started("-n", "2", "--epsilon", "-1")
    assert failed.returncode == 2
    assert "dpmpi: --epsilon must be greater than 0, got -1.0" in failed.stderr


def alone(tmp_path, *flags):
    """Start one process that no launcher has started."""
    unknown = ("OMPI_", "PMI_", "PMIX_")
    return subprocess.run(
        [sys.executable, "-m", "dpmpi.run", *FLAGS, *flags, "--out", str(tmp_path / "run")],
        env={name: value for name, value in os.environ.items() if not name.startswith(unknown)},
        timeout=90,
        capture_output=True,
        text=True,
        check=False,
    )


FLAGS = ("--data", "synthetic:samples=60,features=3", "--rounds", "5", "--epsilon", "1")
ALONE = (
    "training alone, 1 rank without neighbours: dpmpi run -n 20 starts 20 ranks, --loopback 20 runs as many in this "
    "process\n"
)


@needs.mpi
def test_one_process_without_a_launcher_says_that_it_is_alone(tmp_path):
    done = alone(tmp_path)
    assert (done.returncode, done.stderr) == (0, ALONE)
    assert ", 1 rank, " in done.stdout


@needs.mpi
@pytest.mark.parametrize("flags", [("--quiet",), ("--loopback", "1"), ("--log-json",)])
def test_who_asked_for_it_is_not_told(tmp_path, flags):
    done = alone(tmp_path, *flags)
    assert (done.returncode, done.stderr) == (0, "")
