"""What `--batch auto` became is part of a run: it is killed and resumed like any other."""

import json
import os
import signal
import tomllib

import needs
from launcher import finish, mpirun, process_of, start, survivors, wait_until

from dpmpi.commands.verify import verify

pytestmark = needs.mpi


def test_a_run_with_an_automatic_batch_is_killed_and_resumed(tmp_path):
    run = tmp_path / "run"
    data = ["--data", "synthetic:samples=4000,features=8", "--no-evaluate", "--epsilon", 1, "--rounds", 4000]
    process = start(3, *data, "--batch", "auto", "--checkpoint-every", 20, "--out", run)
    assert wait_until(lambda: len(list((run / "checkpoint").glob("rank-*.state"))) >= 3, 90), process.poll()
    assert wait_until((run / "checkpoint" / "manifest.json").exists, 30)
    os.killpg(process.pid, signal.SIGKILL)
    for rank in survivors(run):
        os.kill(rank, signal.SIGKILL)
    assert finish(process, 30).code != 0
    assert wait_until(lambda: not survivors(run), 10)
    batch = tomllib.loads((run / "config.toml").read_text())["batch"]
    assert batch.startswith("poisson:")
    done = mpirun(3, "--resume", run, limit=150)
    assert (done.code, done.own_lines()) == (0, [])
    assert tomllib.loads((run / "config.toml").read_text())["batch"] == batch
    assert not [problem for rank in verify(run) for problem in rank.problems]


@needs.open_mpi()
def test_what_auto_became_survives_a_death(tmp_path):
    """The survivors' graph alone would give another batch: they meet more often."""
    run = tmp_path / "run"
    data = ["--algorithm", "sampled-dda", "--graph", "complete"]
    how = [
        "--data",
        "synthetic:samples=40000,features=8",
        "--no-evaluate",
        "--epsilon",
        1,
        "--rounds",
        4000,
        "--batch",
        "auto",
        "--out",
        run,
    ]
    process = start(5, *data, *how, ulfm=True)
    ledgers = [run / "ledger" / f"rank-{rank:03d}.jsonl" for rank in range(5)]
    assert wait_until(lambda: all(ledger.exists() for ledger in ledgers), 90), process.poll()
    batch = tomllib.loads((run / "config.toml").read_text())["batch"]
    os.kill(process_of(run, 4), signal.SIGKILL)
    done = finish(process, 150)
    summary = json.loads((run / "summary.json").read_text())
    assert (done.code, summary["lost"], summary["batch"]) == (0, [4], batch)
    assert not [problem for rank in verify(run) for problem in rank.problems]
    ledgers[4].write_text("")  # as of a rank that dies before its first line is on the disk
    assert not [problem for rank in verify(run) for problem in rank.problems]
    assert verify(run)[4].unchecked == ("its charges: the ledger of a lost rank that is empty",)
