"""An audit of real MPI runs."""

import json

import needs
from launcher import mpirun

pytestmark = needs.mpi

PROGRAM = ("-m", "dpmpi", "audit")


def test_four_ranks_measure_a_leak(tmp_path):
    flags = ["--records", 20, "--rounds", 100, "--batch", 1, "--noise", 0.02, "--delta", 0.01, "--runs", 20]
    flags += ["--insecure-noise-seed", 1]  # of fresh noise, one audit in some hundred finds nothing in ten trials
    done = mpirun(4, *flags, "--out", tmp_path / "audit", program=PROGRAM)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "audit" / "result.json").read_text())
    assert (result["ranks"], result["releases"], result["trials"], result["others"]) == (4, 100, 10, "opposed")
    assert 0 < result["lower"] < result["certified"]
    assert result["false_alarms"] == 0
    assert done.out.count("measured, at least") == 1


def test_one_run_on_a_sampled_schedule(tmp_path):
    flags = ["--algorithm", "sampled-dda", "--one-run", "--records", 100, "--rounds", 200, "--batch", 4]
    done = mpirun(4, *flags, "--noise", 0.02, "--out", tmp_path / "audit", program=PROGRAM)
    assert done.code == 0, done.err
    result = json.loads((tmp_path / "audit" / "result.json").read_text())
    assert (result["canaries"], result["guesses"]) == (100, 50)
    assert 50 < result["releases"] < 150
    assert result["right"] == 50
    assert result["lower"] > 2


def test_wrong_flags_are_one_line_and_exit_code_2():
    done = mpirun(4, "--noise", 1, "--batch", "fixed:2000", program=PROGRAM)
    assert done.code == 2
    [line] = done.own_lines()
    assert "at most the 1000 records" in line
