"""Whole runs, as a user starts them."""

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import needs
import numpy as np
import pytest
from launcher import MPIRUN, USUAL, finish, mpirun, start, survivors, usual, wait_until

pytestmark = needs.mpi

DATA = ("--data", "synthetic:samples=2000,features=40")
LIMIT = 300
"""Seconds for 20 ranks on a machine that has other work."""


def loopback(ranks, *arguments):
    command = [sys.executable, "-m", "dpmpi.run", "--loopback", str(ranks), *usual(arguments)]
    subprocess.run(command, check=True, capture_output=True, timeout=LIMIT)


def summary(folder):
    return json.loads((folder / "summary.json").read_text())


def test_defaults_give_a_good_model_with_the_same_bits_on_loopback(tmp_path):
    """Nothing but data and a target: settings are derived, told, written down, and all ranks' models are alike."""
    data = "synthetic:samples=20000,features=20,decay=1,skew=1"
    flags = ["--algorithm", "momentum", "--data", data, "--loss", "logistic", "--epsilon", 1, "--seed", 7]
    flags += ["--insecure-noise-seed", 3]
    done = mpirun(5, *flags, "--out", tmp_path / "mpi", limit=LIMIT)
    assert done.code == 0, done.err
    assert re.search(r"^derived: \d+ rounds, beta [\d.]+, eta [\d.]+, clip 0.5, \d mixes$", done.out, re.MULTILINE)
    assert re.search(r"^expect a good model if no class is below [\d.]+% ", done.out, re.MULTILINE)
    assert re.search(r"^  expected +a good model if ", done.out, re.MULTILINE)
    found = summary(tmp_path / "mpi")
    assert found["verdict"]["word"] == "good"
    assert found["accuracy"] - 0.005 < found["rank_accuracy"]
    assert found["objective"] < 0.6
    loopback(5, *flags, "--out", tmp_path / "one")
    mine, theirs = (np.load(tmp_path / name / "model.npz") for name in ("mpi", "one"))
    np.testing.assert_array_equal(mine["x_rank"], theirs["x_rank"])
    c, x = 0.3, mine["x"]
    np.testing.assert_allclose(mine["coefficients"], x[:-1] / np.sqrt(1 + c * c), rtol=1e-15)
    assert mine["intercept"] == pytest.approx(c * x[-1] / np.sqrt(1 + c * c), rel=1e-14)
    again = mpirun(5, "--config", tmp_path / "mpi" / "config.toml", "--out", tmp_path / "again", limit=LIMIT)
    assert again.code == 0, again.err
    np.testing.assert_array_equal(np.load(tmp_path / "again" / "model.npz")["x"], x)


def test_twenty_ranks_train_a_private_model(tmp_path):
    out = tmp_path / "run"
    flags = ["--data", "synthetic:samples=40000,features=20", "--rounds", 100, "--epsilon", 1, "--seed", 7]
    done = mpirun(20, *flags, "--reference", "--out", out, limit=LIMIT)
    assert done.code == 0, done.err
    found = summary(out)
    assert (found["ranks"], found["rounds"], found["dimension"]) == (20, 100, 20)
    assert found["graph"]["name"] == "ring"
    assert found["graph"]["edges"] == 20
    assert found["graph"]["beta"] == pytest.approx(1 / 3 + 2 / 3 * np.cos(2 * np.pi / 20))
    assert found["privacy"]["private"] is True
    assert 0.98 < found["privacy"]["epsilon"] <= 1.0
    assert found["accuracy"] > 0.8
    assert 0 < found["suboptimality"] < 0.2
    messages = 20 * 2 * 100
    parts = {"payload_bytes": messages * 8 * 20, "share_bytes": 0, "tag_bytes": 0, "trailer_bytes": messages * 16}
    assert found["communication"] == {"messages": messages, "bytes": messages * (8 * 20 + 16)} | parts
    assert [record["rank"] for record in found["per_rank"]] == list(range(20))
    assert all(record["active_rounds"] == 100 for record in found["per_rank"])
    assert all(record["samples"] == 2000 for record in found["per_rank"])
    assert done.out.count("suboptimality") == 1, done.out
    assert len(done.out.splitlines()) < 19, done.out
    assert tomllib.loads((out / "config.toml").read_text())["rounds"] == 100
    assert len(list((out / "ledger").glob("*.jsonl"))) == len(list((out / "metrics").iterdir())) == 20
    lines = [json.loads(line) for line in (out / "metrics" / "rank-003.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == list(range(5, 101, 5))
    assert lines[-1]["objective"] == found["objective"]
    with np.load(out / "model.npz") as model:
        np.testing.assert_allclose(model["x_rank"].mean(axis=0), model["x"], atol=1e-12)


@pytest.mark.parametrize("ranks", [2, 5, 20])
@pytest.mark.parametrize("algorithm", ["dda", "dp-dda", "sampled-dda"])
def test_bits_are_those_of_loopback(tmp_path, algorithm, ranks):
    flags = ["--algorithm", algorithm, *DATA, "--graph", "complete", "--rounds", 40, "--evaluate", 17]
    flags += ["--noise", 0.1, "--batch", 16, "--insecure-noise-seed", 3]
    done = mpirun(ranks, *flags, "--out", tmp_path / "mpi", limit=LIMIT)
    assert done.code == 0, done.err
    loopback(ranks, *flags, "--out", tmp_path / "one")
    with np.load(tmp_path / "mpi" / "model.npz") as mpi, np.load(tmp_path / "one" / "model.npz") as one:
        np.testing.assert_array_equal(mpi["x_rank"], one["x_rank"])
        assert np.abs(mpi["x_rank"]).max() > 0
    found = summary(tmp_path / "mpi")
    assert found["privacy"]["private"] is False
    assert "NOT PRIVATE" in done.out
    if algorithm == "sampled-dda":
        assert sum(record["active_rounds"] for record in found["per_rank"]) == 2 * 40
        for record in found["per_rank"]:
            assert record["messages_sent"] == record["active_rounds"]


BAD = {
    "a graph that does not exist": (["--graph", "rung"], "ring"),
    "an unknown key": (["--config", "{tmp}/unknown.toml"], "unknown key 'roundss'"),
    "a negative epsilon": (["--epsilon", "-1"], "--epsilon must be greater than 0"),
    "no rounds": (["--rounds", "0"], "--rounds must be at least 1"),
    "a missing shard": (["--data", "shards:{tmp}/nowhere-{{rank}}.npz"], "nowhere-0.npz"),
    "a NaN in the data": (["--data", "libsvm:{tmp}/nan.svm"], "nan.svm:3"),
    "more edges than the graph has": (["--graph", "random:edges=500"], "500"),
    "more sampled edges than there are": (["--algorithm", "sampled-dda", "--sample-edges", "15"], "15"),
    "fewer rows than ranks": (["--data", "libsvm:{tmp}/three.svm", "--test-fraction", "0"], "3"),
    "another number of ranks": (["--ranks", "7"], "7 ranks"),
}


AT_SCALE = ("a NaN in the data", "another number of ranks", "no rounds")
"""Refused by the ranks that read the data, when all ranks are there, and before MPI is started."""


def with_ranks(what):
    return [(what, 4), pytest.param(what, 20, marks=() if what in AT_SCALE else pytest.mark.slow)]


@pytest.mark.parametrize(("what", "ranks"), [case for what in sorted(BAD) for case in with_ranks(what)])
def test_wrong_input_is_one_line_and_exit_code_2(tmp_path, what, ranks):
    (tmp_path / "unknown.toml").write_text("roundss = 3\n")
    (tmp_path / "nan.svm").write_text("".join(f"{(-1) ** i} 1:{'nan' if i == 2 else i}\n" for i in range(50)))
    (tmp_path / "three.svm").write_text("1 1:1\n-1 1:2\n1 2:1\n")
    arguments, expected = BAD[what]
    done = mpirun(ranks, *(a.format(tmp=tmp_path) for a in arguments), "--out", tmp_path / "run", limit=LIMIT)
    assert done.code == 2, done.err
    [line] = done.own_lines()
    assert expected in line
    assert "Traceback" not in done.err
    assert not (tmp_path / "run" / "summary.json").exists()


def test_only_one_shard_is_missing(tmp_path):
    command = [sys.executable, "-m", "dpmpi", "data", "shard", "synthetic:samples=90,features=4", "--ranks", "4"]
    subprocess.run([*command, "--out", str(tmp_path / "s-{rank}.npz")], check=True, timeout=60, capture_output=True)
    flags = ["--data", f"shards:{tmp_path}/s-{{rank}}.npz", "--rounds", 5, "--out", tmp_path / "run"]
    done = mpirun(4, *flags)
    assert done.code == 0, done.err
    assert summary(tmp_path / "run")["objective"] is None  # shards are not evaluated unless asked for
    (tmp_path / "s-2.npz").unlink()
    done = mpirun(4, *flags)
    assert done.code == 2
    assert len(done.own_lines()) == 1
    assert "rank 2" in done.own_lines()[0]


FAILING = """
from dataclasses import dataclass
from dpmpi.algorithms.dda import DpDda

@dataclass(frozen=True)
class Failing(DpDda):
    def round(self, agent, state, t):
        if agent.rank == 7 and t == 50:
            raise ArithmeticError("the planted failure")
        yield from super().round(agent, state, t)
"""


def test_an_exception_on_one_rank_ends_all(tmp_path):
    script = tmp_path / "failing.py"
    script.write_text(FAILING)
    flags = ["--plugin", script, "--algorithm", "failing", "--rounds", 10**6, "--no-evaluate"]
    process = start(20, *USUAL, *DATA, *flags, "--out", tmp_path / "run")
    done = finish(process, LIMIT)
    assert done.code not in (0, None)
    kept = tmp_path / "run" / "failure" / "rank-007.txt"
    said = f"failing.py, line 9: ArithmeticError: the planted failure; more in {kept}, for this rank's owner"
    assert done.own_lines() == [f"dpmpi: rank 7, round 50: {said}"], done.err
    assert "Traceback" in kept.read_text()
    assert "Traceback" not in done.err
    assert wait_until(lambda: not survivors(tmp_path), 20)


def test_ctrl_c_ends_all(tmp_path):
    out = tmp_path / "run"
    process = start(20, *DATA, "--rounds", 10**7, "--evaluate", 10, "--out", out)
    ledger = out / "ledger" / "rank-019.jsonl"
    assert wait_until(lambda: ledger.exists() and "reserve" in ledger.read_text(), LIMIT), process.poll()
    os.kill(process.pid, signal.SIGINT)
    done = finish(process, LIMIT)
    assert done.code != 0
    assert "Traceback" not in done.err
    assert wait_until(lambda: not survivors(tmp_path), 20)
    ended = (out / "ended.txt").read_text()
    assert re.fullmatch(r"rank \d+, round \d+: interrupted\n", ended)
    # Open MPI's mpirun drops what its ranks say once it is interrupted; on a terminal they write to it directly.
    assert done.own_lines() in ([], [f"dpmpi: {ended.strip()}"])


def test_ctrl_c_on_a_terminal_says_so_once(tmp_path):
    command = [
        MPIRUN,
        "-n",
        "4",
        sys.executable,
        "-m",
        "dpmpi.run",
        *USUAL,
        *DATA,
        "--rounds",
        "10000000",
        "--evaluate",
        "10",
    ]
    pid, terminal = pty.fork()
    if pid == 0:  # a shell that stays, as in a terminal window
        line = shlex.join([*command, "--out", str(tmp_path / "run")])
        os.execv("/bin/bash", ["bash", "-c", f"trap : INT; {line}; echo shell is back; read -r -t 300 _"])
    shown = bytearray()

    def read():
        while select.select([terminal], [], [], 0)[0]:
            try:
                shown.extend(os.read(terminal, 65536))
            except OSError:
                return

    try:
        assert wait_until(lambda: read() or b"derived: " in shown, LIMIT), shown
        os.write(terminal, b"\x03")
        assert wait_until(lambda: read() or b"shell is back" in shown, LIMIT), shown
        assert wait_until(lambda: survivors(tmp_path) == [pid], 20)
        read()
    finally:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)
    assert shown.count(b": interrupted") == 1, shown
    assert b"Traceback" not in shown


def test_no_rank_holds_more_than_its_shard(tmp_path):
    features, samples, ranks = 2000, 32_000, 4
    flags = ["--data", f"synthetic:samples={samples},features={features}", "--rounds", 3, "--test-fraction", 0]
    done = mpirun(ranks, *flags, "--out", tmp_path / "run", "--no-evaluate", limit=LIMIT)
    assert done.code == 0, done.err
    shard_mb = samples * features * 8 / ranks / 1e6
    for record in summary(tmp_path / "run")["per_rank"]:
        assert shard_mb < record["max_rss_mb"] < shard_mb + 150


def test_the_same_configuration_again_keeps_the_first_run(tmp_path):
    out = tmp_path / "run"
    loopback(3, *DATA, "--rounds", 5, "--insecure-noise-seed", 1, "--noise", 0.1, "--out", out)
    first = np.load(out / "model.npz")["x"]
    loopback(3, "--config", out / "config.toml", "--out", out)
    np.testing.assert_array_equal(np.load(out / "model.npz")["x"], first)
    assert Path(f"{out}.1", "summary.json").exists()


@needs.data
def test_real_sparse_data(tmp_path):
    path = Path(os.environ["DPMPI_DATA"]) / "a9a.bz2"
    flags = ["--data", f"libsvm:{path}", "--algorithm", "dda", "--weighting", "linear", "--rounds", 60, "--batch", 64]
    done = mpirun(5, *flags, "--gamma", 1, "--out", tmp_path / "run")
    assert done.code == 0, done.err
    found = summary(tmp_path / "run")
    assert sum(record["samples"] for record in found["per_rank"]) == 32_561 - 3_256
    assert found["accuracy"] > 0.8
