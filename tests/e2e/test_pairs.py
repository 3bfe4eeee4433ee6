"""Noise that cancels between neighbours, in whole runs: bits, ledgers, resumes and the plan."""

import json
import os
import signal

import needs
import numpy as np
import pytest
from launcher import finish, mpirun, start, wait_until

from dpmpi.commands.dispatch import main
from dpmpi.run import main as run

PAIRS = ("--noise-in", "pairs", "--seal", "--pair-noise", "5")
SMALL = ("--data", "synthetic:samples=600,features=6", "--loss", "logistic", "--epsilon", "1", "--graph", "ring")
SEEDED = ("--insecure-noise-seed", "3")


def model(path):
    return np.load(path / "model.npz")["x_rank"]


@needs.mpi
@pytest.mark.parametrize("algorithm", ["momentum", "dp-dda", "dgd", "ip-admm"])
def test_the_bits_of_mpi_are_those_of_one_process(tmp_path, algorithm):
    flags = ("--algorithm", algorithm, *SMALL, *PAIRS, *SEEDED, "--rounds", "12")
    assert run(["--loopback", "4", *flags, "--quiet", "--out", str(tmp_path / "one")]) == 0
    done = mpirun(4, *flags, "--out", tmp_path / "mpi")
    assert done.code == 0, done.err
    np.testing.assert_array_equal(model(tmp_path / "mpi"), model(tmp_path / "one"))


@needs.mpi
def test_a_resumed_run_has_new_pair_noise_and_verifies(tmp_path):
    out = tmp_path / "run"
    flags = ("--algorithm", "dp-dda", *SMALL, *PAIRS, "--rounds", "4000", "--checkpoint-every", "100", "--no-evaluate")
    begun = start(4, *flags, "--out", out)
    wait_until((out / "checkpoint/manifest.json").exists, 60)
    os.kill(begun.pid, signal.SIGINT)
    finish(begun, 60)
    done = mpirun(4, "--resume", out)
    assert done.code == 0, done.err
    assert main(["verify", str(out)]) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["privacy"]["noise_in"] == "pairs"
    assert summary["privacy"]["colluders"] == 1
    assert summary["privacy"]["epsilon"] <= 1.0


def test_plan_says_how_much_a_rank_hides_behind(capsys):
    flags = ["--ranks", "20", "--samples-per-rank", "500", "--dimension", "20", "--epsilon", "1", "--loss", "logistic"]
    told = {}
    for colluders in (1, 2):
        assert main(["plan", *flags, *PAIRS, "--colluders", str(colluders), "--json"]) == 0
        told[colluders] = json.loads(capsys.readouterr().out)["pair_noise"]
    # The end of a long path: by continued fractions y = 1/(1 + 2 k - k^2 y), 1/gain^2 = 1/(1 + k - k^2 y), k = kappa^2.
    y = (51 - 101**0.5) / 1250
    expected = (26 - 625 * y) ** 0.5
    assert told[1].pop("line").startswith("cancels in the mean: ")
    assert told[1] == {"kappa": 5.0, "colluders": 1, "gain": pytest.approx(expected, rel=1e-3), "search": "every set"}
    assert told[2]["gain"] == pytest.approx(1.0, abs=1e-6)  # two ranks cut a ring
    assert main(["plan", *flags, *PAIRS]) == 0
    assert "cancels in the mean: 0.43 of local noise there, whichever rank colludes" in capsys.readouterr().out


REFUSED = {
    "add --seal": ["--noise-in", "pairs"],
    "use --noise-in sum": ["--noise-in", "pairs", "--exchange", "shares", "--seal"],
    "expected Gaussian noise": [*PAIRS, "--algorithm", "admm", "--mechanism", "laplace"],
    "found noise inside an objective": [*PAIRS, "--algorithm", "dvp-admm", "--mechanism", "gaussian"],
    "expected noise of the same size": [*PAIRS, "--algorithm", "ip-admm", "--inner-noise", "once", "--graph", "path"],
    "expected neighbours that stay": [*PAIRS, "--algorithm", "sampled-dda"],
    "to leave 2 honest ranks of 4": [*PAIRS, "--colluders", "3"],
    "must be at least 0.01": [*PAIRS, "--pair-noise", "0"],
}


@pytest.mark.parametrize(("expected", "flags"), REFUSED.items(), ids=REFUSED)
def test_what_does_not_go_with_pairs_is_one_line(tmp_path, capsys, expected, flags):
    assert run(["--loopback", "4", *SMALL, *flags, "--out", str(tmp_path / "run")]) == 2
    assert expected in capsys.readouterr().err
