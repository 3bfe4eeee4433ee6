"""Several hosts, each a set of Linux namespaces on this machine; see namespaces.sh. Needs root."""

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path

import needs
import numpy as np
import pytest
from groups import run_group
from launcher import MPIRUN, wait_until

REPOSITORY = Path(__file__).parents[2]
LAN = "10.77.0.0/24"
TO_THE_CUT = 200
"""The rounds before a cable is pulled."""


pytestmark = [needs.namespaces(), needs.open_mpi()]


def on_front(hosts, slots, script, limit=120, **variables):
    """Run a bash script on the front end of so many hosts; its `launch FLAGS` starts ranks on all of them."""
    prelude = f'set -euo pipefail; launch() {{ {REPOSITORY}/launch/ssh $HOSTFILE "$@"; }}\n'
    path = f"{Path(MPIRUN).parent}:{os.environ['PATH']}"
    ours = {"PATH": path, "PYTHON": sys.executable, "PYTHONPATH": REPOSITORY, "SLOTS": slots, "GRACE": 2}
    environment = os.environ | {name: str(value) for name, value in (ours | variables).items()}
    return run_group([needs.NAMESPACES, str(hosts), "bash", "-c", prelude + script], limit, env=environment)


def summary_of(run):
    return json.loads((run / "summary.json").read_text())


def model_of(run):
    return np.load(run / "model.npz")["x_rank"]


def in_one_process(out, ranks, *flags):
    """The same run without MPI, for its bits."""
    command = [sys.executable, "-m", "dpmpi.run", f"--loopback={ranks}", f"--out={out}", *flags]
    subprocess.run(command, check=True, capture_output=True, cwd=REPOSITORY, timeout=60)
    return model_of(out)


def test_twenty_ranks_on_four_hosts_compute_the_bits_of_one_process(tmp_path):
    flags = ("--algorithm=dp-dda", "--data=synthetic:samples=2000,features=20", "--rounds=60", "--epsilon=1")
    flags += ("--insecure-noise-seed=5", "--no-evaluate")
    # Beside training, every rank notes where it is.
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ -z "$OMPI_COMM_WORLD_RANK" ] || hostname > {tmp_path}/host-$OMPI_COMM_WORLD_RANK\n'
        f'exec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = on_front(4, 5, f"launch {' '.join(flags)} --out {tmp_path}/run", PYTHON=python)
    assert done.code == 0, done.err
    assert summary_of(tmp_path / "run")["ranks"] == 20
    places = [(tmp_path / f"host-{rank}").read_text().strip() for rank in range(20)]
    assert places == [f"node{1 + rank // 5}" for rank in range(20)]
    np.testing.assert_array_equal(model_of(tmp_path / "run"), in_one_process(tmp_path / "one", 20, *flags))


def test_a_shard_is_on_the_disk_of_its_host_alone(tmp_path):
    hosts, private = 3, "/media/private"
    generator = np.random.default_rng(3)
    for rank in range(hosts):
        rows = 30 + rank  # tells the shards apart
        X = generator.normal(size=(rows, 4))
        np.savez(tmp_path / f"shard-{rank}.npz", X=X, y=np.sign(X[:, 0]))
    flags = ("--algorithm=dda", "--rounds=20", "--test-fraction=0")
    script = f"""
        for rank in 0 1 2; do $DPMPI_HOSTS/enter node$((rank + 1)) cp {tmp_path}/shard-$rank.npz {private}; done
        for rank in 0 1 2; do $DPMPI_HOSTS/enter node$((rank + 1)) ls {private} | grep shard; done
        export MAP=ppr:1:node
        launch {" ".join(flags)} --data 'shards:{private}/shard-{{rank}}.npz' --out {tmp_path}/run > /dev/null
        ! launch --data 'shards:{private}/shard-0.npz' --out {tmp_path}/wrong > /dev/null
    """
    done = on_front(hosts, 1, script)
    assert done.code == 0, done.err
    assert done.out.split() == ["shard-0.npz", "shard-1.npz", "shard-2.npz"]  # one on each host
    assert [record["samples"] for record in summary_of(tmp_path / "run")["per_rank"]] == [30, 31, 32]
    expected = in_one_process(tmp_path / "one", hosts, *flags, f"--data=shards:{tmp_path}/shard-{{rank}}.npz")
    np.testing.assert_array_equal(model_of(tmp_path / "run"), expected)
    # Nobody but the first host can read its shard.
    assert any("shard-0.npz" in line for line in done.own_lines())
    assert not (tmp_path / "wrong/summary.json").exists()


def test_counted_bytes_are_those_of_the_interfaces(tmp_path):
    rounds, features = 500, 2000
    script = f"""
        count() {{ cat /sys/class/net/to-node{{1,2}}/statistics/rx_bytes; }}
        count
        launch --algorithm dda --intercept none --data synthetic:samples=80,features={features} --rounds {rounds} \\
               --no-evaluate --out {tmp_path}/run > /dev/null
        count
    """
    done = on_front(2, 2, script)
    assert done.code == 0, done.err
    before, after = np.array(done.out.split(), dtype=float).reshape(2, 2)
    sent = np.zeros(2)
    for record in summary_of(tmp_path / "run")["per_rank"]:
        host = record["rank"] // 2
        sent[host] += sum(t["bytes_sent"] for peer, t in record["neighbours"].items() if int(peer) // 2 != host)
    assert sent.tolist() == [2 * rounds * (8 * features + 16)] * 2  # two edges of the ring leave each host
    # Headers (78 bytes in 9000), acknowledgements, and what it takes to start: the interface counts a little more.
    assert np.all(after - before > sent)
    assert np.all(after - before < 1.03 * sent)


CUT = """
    launch --algorithm dda --data synthetic:samples=120,features=10 --evaluate 100 $FLAGS --out $RUN &
    job=$!
    until grep -qs '"round": '$CUT_AT, $RUN/metrics/rank-000.jsonl; do kill -0 $job; sleep 0.05; done
    $DPMPI_HOSTS/cut node2
    begin=$SECONDS
    ranks() { grep -las OMPI_COMM_WORLD_RANK= /proc/[0-9]*/environ | wc -l; }
    until [ $(ranks) -le $LEFT ] || [ $((SECONDS - begin)) -ge 60 ]; do sleep 0.1; done
    echo $((SECONDS - begin)) > $RUN.seconds
    wait $job
"""


def test_a_host_that_is_cut_off_ends_the_run_by_the_deadline(tmp_path):
    deadline, run = 4, tmp_path / "run"
    # No shared disk: what the ranks on this host write is not seen by the others.
    apart = f"$DPMPI_HOSTS/enter node2 'mkdir /media/private/own && mount --bind /media/private/own {tmp_path}'"
    flags = f"--algorithm dp-dda --rounds 1000000 --deadline {deadline}"
    done = on_front(3, 2, apart + CUT, FLAGS=flags, RUN=run, CUT_AT=TO_THE_CUT, LEFT=0)
    assert done.code == 1
    ended = (run / "ended.txt").read_text().strip()
    assert f"waited {deadline} s" in ended
    assert "rank 2, 3 is silent" in ended
    assert f"dpmpi: {ended}" in done.own_lines()
    # No rank is left, on either side. They tell each other whom they wait for before they end.
    assert int(Path(f"{run}.seconds").read_text()) <= deadline + 20
    assert not (run / "summary.json").exists()


@pytest.mark.parametrize(("hosts", "slots"), [(3, 2), pytest.param(4, 5, marks=pytest.mark.slow)])
def test_the_others_go_on_without_a_host_that_is_cut_off(tmp_path, hosts, slots):
    """Ranks that have no core for longer than the heartbeats' timeout would be taken for dead: it is not short."""
    run = tmp_path / "run"
    flags = f"--rounds {5 * TO_THE_CUT} --deadline 60"
    beats = {"OMPI_MCA_mpi_ft_detector_period": 1, "OMPI_MCA_mpi_ft_detector_timeout": 6}
    done = on_front(hosts, slots, CUT, 180, FLAGS=flags, RUN=run, CUT_AT=TO_THE_CUT, LEFT=slots, SURVIVE=1, **beats)
    assert done.code == 0, done.err
    lost = range(slots, 2 * slots)  # of the second host
    names = [rank for rank in range(hosts * slots) if rank not in lost]
    assert f"dpmpi: lost rank {', '.join(map(str, lost))}; {len(names)} ranks go on" in done.err
    summary = summary_of(run)
    assert [record["rank"] for record in summary["per_rank"]] == names
    assert summary["rounds"] == 5 * TO_THE_CUT


def test_a_rank_that_computes_for_long_is_not_taken_for_dead(tmp_path):
    """The second rank calls nothing for longer than the heartbeats' timeout, while the others wait for it."""
    program = tmp_path / "program.py"
    program.write_text(
        "import time\n"
        "from dpmpi.network.transport.mpi import open_world\n"
        "world = open_world()\n"
        "if world.rank == 1:\n"
        "    began = time.monotonic()\n"
        "    while time.monotonic() - began < 12:\n"
        "        pass\n"
        "print(*world.collect([str(world.rank)]))\n"
    )
    beats = {"OMPI_MCA_mpi_ft_detector_period": 1, "OMPI_MCA_mpi_ft_detector_timeout": 4}
    passed = " ".join(f"-x {name}" for name in (*beats, "PYTHONPATH", "OMPI_MCA_pml", "OMPI_MCA_btl"))
    script = f"mpirun --with-ft ulfm --hostfile $HOSTFILE --map-by slot {passed} {sys.executable} {program}"
    done = on_front(2, 1, script, **beats)
    assert done.code == 0, done.err
    assert done.out.splitlines() == ["0 1"] * 2


def test_a_run_over_hosts_stops_when_told_and_is_resumed(tmp_path):
    script = f"""
        {REPOSITORY}/launch/ssh $HOSTFILE --algorithm dp-dda --data synthetic:samples=40,features=10 --epsilon 1 \\
            --rounds 600 --evaluate 50 --checkpoint-every 100s --out {tmp_path}/run > /dev/null &
        until grep -qs '"round": 100,' {tmp_path}/run/metrics/rank-000.jsonl; do kill -0 $!; sleep 0.05; done
        kill -USR1 $!
        wait $! || echo $?
        ls {tmp_path}/run
        launch --resume {tmp_path}/run > /dev/null
    """
    done = on_front(2, 1, script)
    assert done.code == 0, done.err
    told, *files = done.out.split()
    assert told == "75"
    assert "summary.json" not in files
    summary = summary_of(tmp_path / "run")
    assert summary["rounds"] == summary["per_rank"][1]["active_rounds"] == 600


def test_ranks_are_placed_as_the_host_files_say(tmp_path):
    """The table in hostfiles/README.md, and its warning."""
    script = """
        where='echo $OMPI_COMM_WORLD_RANK $(hostname)'
        # Open MPI's daemons hang at times when they start their children ("setpgid failed"): that is not the question.
        mapped() { timeout 15 mpirun --hostfile $HOSTFILE -n 4 "$@" sh -c "$where"; }
        say() { out=$(mapped "$@") || out=$(mapped "$@"); echo "$out" | sort | tr '\\n' ' '; }
        say --map-by slot --bind-to none; echo
        say --map-by node --bind-to none; echo
        say --map-by ppr:2:node --bind-to none; echo
        printf 'rank %d=%s slot=0\\n' 0 node2 1 node1 2 node2 3 node1 > $DPMPI_HOSTS/rankfile
        say --map-by rankfile:file=$DPMPI_HOSTS/rankfile --bind-to none; echo
        export PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe PRTE_MCA_hwloc_default_binding_policy=none
        say; echo
        say --map-by slot
    """
    done = on_front(2, 2, script)
    assert done.code == 0, done.err
    places = ["".join(word[-1] for word in line.split()[1::2]) for line in done.out.splitlines()]
    filled, dealt, all_on_one = "1122", "1212", "1111"
    assert places == [filled, dealt, filled, "2121", all_on_one, filled]


def test_a_network_that_leads_nowhere_is_avoided_if_told(tmp_path):
    script = f"""
        for host in node1 node2; do
            nsenter --target $(cat $DPMPI_HOSTS/$host.pid) --net sh -e -c "
                ip link add dead type veth peer name end
                ip addr add 172.30.0.${{host#node}}/16 dev dead
                ip link set end up
                ip link set dead up"
        done
        flags="--algorithm dda --data synthetic:samples=40,features=2000 --rounds 20"
        ! launch $flags --deadline 2 --out {tmp_path}/any
        NETWORK={LAN} launch $flags --out {tmp_path}/told
    """
    done = on_front(2, 1, script)
    assert done.code == 0, done.err
    assert not (tmp_path / "any/summary.json").exists()
    assert summary_of(tmp_path / "told")["rounds"] == 20


def test_a_host_that_cannot_be_reached_is_named_before_anything_starts(tmp_path):
    done = on_front(1, 1, f"echo 'node7 slots=2' >> $HOSTFILE; launch --out {tmp_path}/run")
    assert done.code == 2
    assert any(line.startswith("node7: expected dpmpi") for line in done.err.splitlines())
    assert "node1:" not in done.err
    assert not (tmp_path / "run").exists()


def pid_namespaces():
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/pid"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.add(path.stat().st_ino)
    return found


def test_nothing_is_left_when_the_front_end_is_killed():
    command = [needs.NAMESPACES, "2", "sh", "-c", "echo; exec sleep 4242"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout.readline() == b"\n"
        inside = int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text())
        space = Path(f"/proc/{inside}/ns/pid").stat().st_ino
        assert space in pid_namespaces()
        process.kill()
    assert wait_until(lambda: space not in pid_namespaces(), 20)
