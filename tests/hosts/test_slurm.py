"""launch/slurm.sbatch on a real Slurm, see slurm.sh. Takes minutes, and needs root."""

import json
import os
import subprocess
import sys
from pathlib import Path

import needs
import pytest
from groups import run_group
from launcher import MPIRUN

REPOSITORY = Path(__file__).parents[2]
FLAGS = "--algorithm dp-dda --data synthetic:samples=80,features=20 --epsilon 1"


pytestmark = [pytest.mark.slow, needs.slurm(), needs.namespaces(), needs.open_mpi()]

# Slurm waits two minutes before it starts a job again, for the nodes to forget the last attempt. Three seconds will do.
PRELUDE = """
    set -euo pipefail
    job() { squeue --noheader --jobs $1 --format "%T %r" 2> /dev/null || true; }
    ended() {
        until [ -z "$(job $1)" ]; do
            [[ $(job $1) != *BeginTime* ]] || { sleep 3; scontrol update JobId=$1 StartTime=now; }
            sleep 0.5
        done
        scontrol show job $1 | grep -oE '(JobState|Restarts|ExitCode)=[^ ]*' | tr '\\n' ' '
    }
    reached() { until grep -qs '"round": '$2, $1/metrics/rank-000.jsonl; do sleep 0.2; done; }
"""


def on_slurm(folder, script, limit, **variables):
    """Run a bash script in `folder` on the front end of two nodes with two processors each."""
    (folder / ".venv/bin").mkdir(parents=True)
    python = folder / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    ours = {"PYTHONPATH": str(REPOSITORY), "PATH": f"{Path(MPIRUN).parent}:{os.environ['PATH']}", "CPUS": "2"}
    ours |= {"LAUNCH": str(REPOSITORY / "launch/slurm.sbatch")}
    ours |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    command = [REPOSITORY / "tests/hosts/slurm.sh", "2", "bash", "-c", PRELUDE + script]
    done = run_group(command, limit, env=os.environ | ours | variables, cwd=folder)
    assert done.code == 0, done.err
    return done.out.split()


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def test_a_run_longer_than_the_time_limit_is_queued_again_until_it_is_done(tmp_path):
    # How long a run takes depends on the machine: measure, then ask for 50 s of work. Slurm looks at limits every 30 s.
    script = f"""
        first=$(sbatch --parsable --ntasks-per-node 2 $LAUNCH {FLAGS} --rounds 1000 --no-evaluate)
        ended $first > /dev/null
        rate=$(sed -n 's/ *"rounds_per_second": \\([0-9]*\\).*/\\1/p' runs/dpmpi-$first/summary.json)
        limits="--time 1 --signal B:USR1@10"
        long=$(sbatch --parsable --ntasks-per-node 2 $limits $LAUNCH {FLAGS} --rounds $((50 * rate)))
        ended $long
    """
    state = dict(item.split("=") for item in on_slurm(tmp_path, script, 500))
    log = (tmp_path / "dpmpi-2.out").read_text()
    assert state["JobState"] == "COMPLETED", log
    assert int(state["Restarts"]) >= 1
    run = tmp_path / "runs/dpmpi-2"
    summary = summary_of(run)
    assert log.count("told to stop; go on after round") == int(state["Restarts"])
    assert "TIME LIMIT" not in log  # never killed by it
    assert summary["ranks"] == 4
    # Nothing was repeated: what all attempts spent together is what one would have spent.
    assert summary["privacy"]["epsilon"] == pytest.approx(1.0, abs=1e-3)
    assert summary["per_rank"][0]["active_rounds"] == summary["rounds"]
    subprocess.run([sys.executable, "-m", "dpmpi", "verify", run], check=True, cwd=REPOSITORY, timeout=120)


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_warning_queues_the_job_again_and_a_cancellation_does_not(tmp_path, launcher):
    script = f"""
        warned=$(sbatch --parsable --ntasks-per-node 2 $LAUNCH {FLAGS} --rounds 3000 --evaluate 100)
        reached runs/dpmpi-$warned 500
        scancel --batch --signal USR1 $warned
        ended $warned
        cancelled=$(sbatch --parsable --ntasks-per-node 2 $LAUNCH {FLAGS} --rounds 1000000 --evaluate 100)
        reached runs/dpmpi-$cancelled 500
        scancel $cancelled
        ended $cancelled
    """
    out = on_slurm(tmp_path, script, 300, LAUNCHER=launcher)
    warned, cancelled = dict(item.split("=") for item in out[:3]), dict(item.split("=") for item in out[3:])
    log = (tmp_path / "dpmpi-1.out").read_text()
    assert warned == {"JobState": "COMPLETED", "Restarts": "1", "ExitCode": "0:0"}, log
    assert summary_of(tmp_path / "runs/dpmpi-1")["rounds"] == 3000
    assert (cancelled["JobState"], cancelled["Restarts"]) == ("CANCELLED", "0")
    assert not (tmp_path / "runs/dpmpi-2/summary.json").exists()


def test_every_task_of_an_array_takes_its_own_line_of_flags(tmp_path):
    (tmp_path / "flags.txt").write_text("--rounds 10\n--rounds 20 --graph path\n")
    script = f"""
        sbatch --wait --array 1-2 --ntasks-per-node 1 $LAUNCH {FLAGS} --seed 3
        sbatch --wait --array 1-1 --ntasks-per-node 1 --output bad.out --export ALL,SWEEP= $LAUNCH > /dev/null || true
    """
    on_slurm(tmp_path, script, 120, SWEEP="flags.txt")
    found = [summary_of(tmp_path / f"runs/dpmpi-1_{task}") for task in (1, 2)]
    assert [(one["rounds"], one["graph"]["name"]) for one in found] == [(10, "ring"), (20, "path")]
    assert "an array needs SWEEP" in (tmp_path / "bad.out").read_text()
