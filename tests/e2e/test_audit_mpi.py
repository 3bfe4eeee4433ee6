"""An audit of real MPI runs."""

import json

import needs
import pytest
from launcher import mpirun

from dpmpi.commands.dispatch import main as command

pytestmark = needs.mpi

PROGRAM = ("-m", "dpmpi", "audit")


def audit(ranks, folder, *flags):
    done = mpirun(ranks, *flags, "--insecure-noise-seed", 1, "--out", folder, program=PROGRAM)
    return done, json.loads((folder / "result.json").read_text())


@pytest.mark.parametrize(
    "flags",
    [
        ["--algorithm", "admm"],
        ["--seal", "--batch", 4],
        ["--exchange", "shares", "--noise-in", "sum", "--graph", "complete"],
    ],
)
def test_processes_hear_what_agents_in_one_process_hear(tmp_path, flags):
    flags = ["--records", 20, "--rounds", 6, "--noise", 0.2, "--delta", 0.01, "--runs", 12, *flags]
    done, found = audit(3, tmp_path / "mpi", *flags)
    assert done.code == 0, done.err
    assert done.out.count("epsilon, at least") == 1
    more = ["--insecure-noise-seed", "1", "--out", str(tmp_path / "one"), "--loopback", "3"]
    assert command(["audit", *map(str, flags), *more]) == 0
    alone = json.loads((tmp_path / "one" / "result.json").read_text())
    for one in (found, alone):
        del one["seconds"], one["rounds_per_second"]
    assert found == alone


def test_noise_that_is_missing_is_a_violation_in_real_processes(tmp_path):
    flags = ["--records", 10, "--rounds", 2, "--noise", 0.283, "--delta", 1e-5, "--runs", 120, "--weaken", 4]
    done, result = audit(2, tmp_path / "audit", *flags)
    assert done.code == 1
    assert result["verdict"].startswith("VIOLATION")
    assert result["mu_lower"] > result["mu_certified"]


def test_one_run_on_a_sampled_schedule(tmp_path):
    flags = ["--algorithm", "sampled-dda", "--one-run", "--records", 100, "--rounds", 200, "--batch", 4]
    done, result = audit(4, tmp_path / "audit", *flags, "--noise", 0.02)
    assert done.code == 0, done.err
    assert (result["canaries"], result["guesses"]) == (100, 50)
    assert 50 < result["releases"] < 150
    assert result["right"] == 50
    assert result["lower"] > 2


@pytest.mark.parametrize("flags", [["--algorithm", "admm"], ["--sparse", "--dimension", 2000]])
def test_no_figure_of_a_real_process_tells_two_shards_apart(tmp_path, flags):
    """Two shards that differ in one record, 40 whole runs of each."""
    done, result = audit(3, tmp_path / "audit", "--figures", "--rounds", 5, "--noise", 1, "--runs", 40, *flags)
    assert done.code == 0, done.err
    assert (result["audit"], result["figures"], result["clearest"]) == ("figures", 0, [])


def test_wrong_flags_are_one_line_and_exit_code_2():
    done = mpirun(4, "--noise", 1, "--batch", "fixed:2000", program=PROGRAM)
    assert done.code == 2
    [line] = done.own_lines()
    assert "at most the 100 records" in line
