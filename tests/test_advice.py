"""What Open MPI is told before it starts, and what is known of a process or a launch without it."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dpmpi.launched import advice, complaint, first_on_host, heartbeats, process_age

ULFM = {"OMPI_MCA_mpi_ft_enable": "1"}
EAGER = {"OMPI_MCA_btl_sm_eager_limit"}
ONE_HOST = {"OMPI_MCA_pml", "OMPI_MCA_btl"}
YIELD = {"OMPI_MCA_mpi_yield_when_idle"}


def launched(size: int, local: int) -> dict[str, str]:
    return {"OMPI_COMM_WORLD_SIZE": str(size), "OMPI_COMM_WORLD_LOCAL_SIZE": str(local)}


@pytest.fixture(autouse=True)
def four_cores(monkeypatch):
    monkeypatch.setattr("dpmpi.launched.usable_cores", lambda: 4)


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


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="there is no /proc")
def test_a_process_knows_its_age():
    words = "import time; time.sleep(0.5); from dpmpi.launched import process_age; print(process_age())"
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
