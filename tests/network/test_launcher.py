"""Starting ranks and ending them; what Open MPI is told before it starts, and what is known of a process without it."""

import os
import shlex
import signal
import subprocess
import sys
import time

import needs
import pytest
from launcher import survivors, wait_until

from dpmpi.errors import ConfigError
from dpmpi.network import launcher
from dpmpi.network.launcher import (
    Launcher,
    OutOfTime,
    advice,
    check_together,
    complaint,
    finish,
    first_on_host,
    heartbeats,
    process_age,
    start,
)

ULFM = {"OMPI_MCA_mpi_ft_enable": "1"}
EAGER = {"OMPI_MCA_btl_sm_eager_limit"}
ONE_HOST = {"OMPI_MCA_pml", "OMPI_MCA_btl"}
YIELD = {"OMPI_MCA_mpi_yield_when_idle"}


def launched(size: int, local: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_SIZE": str(local)}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr("dpmpi.network.launcher.usable_cores", lambda: 4)


@pytest.mark.parametrize(
    ("size", "local", "expected"),
    [(4, 4, ONE_HOST), (5, 5, ONE_HOST | YIELD), (8, 4, set()), (10, 5, YIELD), (1, 1, ONE_HOST)],
)
def test_ranks_of_one_host_skip_the_network_and_crowds_yield(size, local, expected):
    assert set(advice(launched(size, local))) == expected | EAGER


def test_only_ranks_of_several_hosts_have_heartbeats():
    calm = {"OMPI_MCA_async_mpi_finalize"}
    assert set(advice(launched(4, 4) | ULFM)) == ONE_HOST | calm | EAGER
    apart = set(advice(launched(8, 4) | ULFM))
    assert apart >= calm | {"OMPI_MCA_mpi_ft_detector"}
    assert not apart & (ONE_HOST | {"OMPI_MCA_mpi_ft_detector_thread"})  # its thread would start too early
    assert not heartbeats(launched(4, 4) | ULFM | advice(launched(4, 4) | ULFM))
    assert heartbeats(launched(8, 4) | ULFM | advice(launched(8, 4) | ULFM))
    assert not heartbeats({"OMPI_MCA_mpi_ft_detector": "1"})
    assert not heartbeats(ULFM | {"OMPI_MCA_mpi_ft_detector": "0"})


OPEN_MPI = {"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "1"}
MPICH = {"PMI_SIZE": "3", "PMI_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "library", "says"),
    [
        (MPICH, "Open MPI", "mpiexec of MPICH started a mpi4py of Open MPI; start it with "),
        (OPEN_MPI, "MPICH", "mpirun of Open MPI started a mpi4py of MPICH; start it with "),
        (OPEN_MPI, "Open MPI", "mpirun of Open MPI started a mpi4py of another Open MPI; start it with "),
    ],
)
def test_ranks_that_are_alone_are_named(environment, library, says):
    alone = "expected 3 ranks, found 3 processes that each are alone: "
    with pytest.raises(ConfigError, match=alone + says) as caught:
        check_together(environment, 1, library)
    assert caught.value.speaker == (environment is MPICH)  # that is rank 0
    check_together(environment, 3, library)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"PMI_SIZE": "1", "PMI_RANK": "0"},
        {"PMI_SIZE": "3"},  # left over: a rank has a number, too
        {"SLURM_NTASKS": "20", "SLURM_PROCID": "0"},  # a program in a batch script
        MPICH | {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},  # mpirun -n 1 within another's rank
    ],
)
def test_one_process_may_be_alone(environment):
    check_together(environment, 1, "Open MPI")


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("", ""),
        ("\n  ----\n----------\n", ""),
        ("-----\nThe listener did not start.\nIt ended.\n-----\n", "The listener did not start."),
        ("first\nTraceback\nImportError: no such thing\nlast\n", "ImportError: no such thing"),
        ("-----\nAn Error\ndpmpi: --rounds must be more\ndpmpi: second\n", "--rounds must be more"),
    ],
)
def test_of_what_a_failed_launch_said_the_line_that_says_most_is_told(said, told):
    assert complaint(said) == told


@needs.linux("/proc/self/stat")
def test_a_process_knows_its_age():
    words = "import time; time.sleep(0.5); from dpmpi.network.launcher import process_age; print(process_age())"
    begin = time.monotonic()
    done = subprocess.run([sys.executable, "-c", words], check=True, capture_output=True, text=True, timeout=60)
    tick = 1 / os.sysconf("SC_CLK_TCK")
    assert 0.5 - tick <= float(done.stdout) <= time.monotonic() - begin + tick
    assert process_age() > float(done.stdout)


def test_one_rank_of_a_host_is_the_first():
    assert first_on_host({})
    assert first_on_host({"OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert not first_on_host({"OMPI_COMM_WORLD_LOCAL_RANK": "3"})
    assert not first_on_host({"MPI_LOCALRANKID": "1", "OMPI_COMM_WORLD_LOCAL_RANK": ""})


# --- starting ranks --------------------------------------------------------------------------------------------------


def test_the_launcher_is_a_template():
    assert Launcher("srun -n {ranks} --exact 'a b'").command(7, ["python", "{ranks}"]) == [
        *("srun", "-n", "7", "--exact", "a b", "python", "{ranks}")
    ]
    assert Launcher("").command(7, ["python"]) == ["python"]
    assert Launcher.make().template.endswith("mpirun -n {ranks}")
    assert Launcher.make(tolerant=True).template.endswith("mpirun --with-ft ulfm -n {ranks}")
    with pytest.raises(ConfigError, match="expected a command, found mpirun 'x"):
        Launcher.make("mpirun 'x")


@pytest.mark.parametrize(("ranks", "idle"), [(4, ""), (5, "1")])
def test_ranks_may_be_more_than_cores_unless_the_user_says_otherwise(monkeypatch, ranks, idle):
    words = [*launcher.LAPTOP, "OMPI_MCA_mpi_yield_when_idle"]
    for name in words:
        monkeypatch.delenv(name, raising=False)
    shown = ["echo " + ",".join(f"${name}" for name in words)]
    done = Launcher("sh -c").run(ranks, shown, 20)
    assert (done.code, done.out) == (0, f":oversubscribe,none,1,none,{idle}\n")
    monkeypatch.setenv("PRTE_MCA_hwloc_default_binding_policy", "core")
    assert Launcher("sh -c").run(ranks, shown, 20).out == f":oversubscribe,core,1,none,{idle}\n"
    more = {"OMPI_MCA_mpi_yield_when_idle": "0"}
    assert Launcher("sh -c").run(ranks, shown, 20, more).out == ":oversubscribe,core,1,none,0\n"


def test_what_ended_is_told():
    script = "echo out; echo first >&2; echo 'dpmpi: ours' >&2; printf '\\377' >&2; exit 3"
    done = Launcher("sh -c").run(2, [script], 20)
    assert (done.code, done.out, done.own_lines()) == (3, "out\n", ["dpmpi: ours"])
    assert done.complaint == "ours (exit code 3)"
    assert 0 <= done.seconds < 20
    silent = finish(start(["sh", "-c", "exit 4"]))
    assert silent.complaint == "it said nothing (exit code 4)"


def test_a_launcher_that_is_not_there():
    with pytest.raises(ConfigError, match="cannot start no-such-launcher") as caught:
        Launcher("no-such-launcher -n {ranks}").run(2, ["true"])
    assert "\n" not in str(caught.value)


def test_who_takes_too_long_is_ended_and_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(launcher, "GRACE_SECONDS", 0.5)
    script = tmp_path / "long"
    script.write_text("trap '' TERM\necho here\nsleep 100 & wait\n")
    begin = time.monotonic()
    with pytest.raises(OutOfTime, match=r"within 0\.5 s") as caught:
        Launcher(f"sh {shlex.quote(str(script))}").run(2, [str(tmp_path)], 0.5)
    assert caught.value.out == "here\n"
    assert time.monotonic() - begin < 20
    assert wait_until(lambda: not survivors(tmp_path), 5)


def test_who_ended_leaves_nobody_of_its_group(tmp_path):
    """A child that let go of the streams does not keep its parent, and does not outlive it."""
    done = finish(start(["sh", "-c", f"sh -c 'sleep 100; true' {tmp_path} >/dev/null 2>&1 & exit 0"]), 20)
    assert done.code == 0
    assert wait_until(lambda: not survivors(tmp_path), 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_the_one_who_waits_ends_the_ranks(tmp_path, number):
    marker = f"sleep 100; true\0{tmp_path}"  # as the words lie in the launcher's command line, not in its parent's
    program = f"from dpmpi.network.launcher import Launcher; Launcher('sh -c').run(2, {marker.split(chr(0))})"
    with subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True) as process:
        assert wait_until(lambda: survivors(marker), 20)
        process.send_signal(number)
        assert process.stderr.read().endswith("KeyboardInterrupt\n")
    assert wait_until(lambda: not survivors(marker), 5)


def test_a_signal_that_somebody_handles_stays_theirs():
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _: heard.append(number))
    try:
        done = Launcher("sh -c").run(2, ["kill -15 $PPID; sleep 0.3; exit 5"], 20)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (done.code, heard) == (5, [signal.SIGTERM])
