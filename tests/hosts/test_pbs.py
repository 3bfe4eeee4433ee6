"""launch/pbs.sh under a stand-in for PBS: `qstat` tells what a job was given, `qsub` notes what is submitted."""

import json
import os
import shlex
import sys
from pathlib import Path

import needs
import pytest
from groups import run_group
from launcher import MPIRUN

REPOSITORY = Path(__file__).parents[2]
RANKS, ROUNDS = 3, 1500

pytestmark = needs.mpi

# The first job is given as much time as it takes until the run is under way, and the warning then comes at once.
QSTAT = """#!/bin/sh
if [ $2 = 1.server ]; then
    until grep -qs '"round": 100,' runs/dpmpi-1/metrics/rank-000.jsonl; do sleep 0.1; done
    time=00:00:30
else
    time=01:00:00
fi
printf 'Job Id: %s\\n    Resource_List.select = 3:ncpus=1\\n    Resource_List.walltime = %s\\n' $2 $time
"""
QSUB = """#!/bin/sh
printf '%s\\n' "$@" > submitted
"""


@pytest.fixture
def cluster(tmp_path):
    """A folder to submit from."""
    python = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    for name, text in (("qstat", QSTAT), ("qsub", QSUB), ("python", python)):
        path = tmp_path / ".venv/bin" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
    (tmp_path / "nodes").write_text("localhost\n" * RANKS)
    (tmp_path / "experiment.toml").write_text(
        'algorithm = "dp-dda"\ndata = "synthetic:samples=60,features=5"\nevaluate = 100\nepsilon = 1.0\n'
        f"rounds = {ROUNDS}\n"
    )
    return tmp_path


def run_job(cluster, number, **variables):
    given = {"PBS_O_WORKDIR": str(cluster), "PBS_NODEFILE": str(cluster / "nodes"), "PBS_JOBID": f"{number}.server"}
    ours = {"PYTHONPATH": str(REPOSITORY), "PATH": f"{Path(MPIRUN).parent}:{os.environ['PATH']}", "WARNING": "30"}
    return run_group(["bash", REPOSITORY / "launch/pbs.sh"], 120, env=os.environ | given | ours | variables)


def test_a_run_that_is_longer_than_its_job_is_submitted_again_and_finishes(cluster):
    run = cluster / "runs/dpmpi-1"
    first = run_job(cluster, 1, CONFIG="experiment.toml")
    assert first.code == 0, first.err  # of qsub
    assert not (run / "summary.json").exists()
    kept = json.loads((run / "checkpoint/manifest.json").read_text())["round"]
    assert 100 <= kept < ROUNDS
    submitted = (cluster / "submitted").read_text().splitlines()
    expected = "-l select=3:ncpus=1 -l walltime=00:00:30 -v RUN=runs/dpmpi-1 launch/pbs.sh"
    assert submitted == expected.split()
    (cluster / "submitted").unlink()

    again = run_job(cluster, 2, **dict([shlex.split(submitted[5])[0].split("=")]))
    assert again.code == 0, again.err
    assert not (cluster / "submitted").exists()
    summary = json.loads((run / "summary.json").read_text())
    assert (summary["ranks"], summary["rounds"]) == (RANKS, ROUNDS)
    assert summary["privacy"]["epsilon"] <= 1.0  # both jobs together


def test_a_job_of_an_array_takes_its_own_line_of_flags(cluster):
    (cluster / "flags.txt").write_text("--rounds 7\n--rounds 9 --graph path")  # no line end: editors differ
    done = run_job(cluster, "5[2]", CONFIG="experiment.toml", SWEEP="flags.txt", PBS_ARRAY_INDEX="2")
    assert done.code == 0, done.err
    summary = json.loads((cluster / "runs/dpmpi-5_2/summary.json").read_text())
    assert (summary["rounds"], summary["graph"]["name"]) == (9, "path")


def test_a_job_that_fails_is_not_submitted_again(cluster):
    done = run_job(cluster, 7, CONFIG="missing.toml")
    assert done.code == 2
    assert not (cluster / "submitted").exists()
