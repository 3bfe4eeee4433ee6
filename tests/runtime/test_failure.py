"""Who speaks and how a process ends: the table of `dpmpi.runtime.failure`, case by case."""

import re
from dataclasses import replace

import pytest

from dpmpi.errors import (
    INTERRUPTED,
    CheckpointError,
    ConfigError,
    DataError,
    NeighbourSilent,
    Preempted,
    ProtocolError,
    RankLost,
    SealBroken,
)
from dpmpi.network.transport.loopback import LoopbackTransport
from dpmpi.runtime.failure import Ending, Place, Speaker, Way, end_run, ending, refuse_unstarted
from dpmpi.runtime.output.directory import RunDirectory

START = Place("while starting", alone=True)
ROUND = Place("round 7", begun=True, alone=True)
ULFM_START = Place("while starting", tolerant=True, alone=True)
ULFM = Place("round 7", begun=True, tolerant=True, alone=True)
TOLD = Place("after a rank was lost", begun=True, tolerant=True, alone=True, others_know=True)
LOOPBACK_START, LOOPBACK = Place("while starting"), Place("round 7", begun=True)

CASES = [
    (ConfigError("x"), START, Speaker.FIRST, Way.RETURN, 2),
    (DataError("x"), ULFM_START, Speaker.FIRST, Way.RETURN, 2),
    (CheckpointError("x"), LOOPBACK_START, Speaker.FIRST, Way.RETURN, 1),
    (Preempted("x"), ROUND, Speaker.FIRST, Way.RETURN, 75),
    (Preempted("x"), ULFM, Speaker.FIRST, Way.RETURN, 75),
    (ZeroDivisionError(), START, Speaker.ITSELF, Way.ABORT, 1),
    (ZeroDivisionError(), ULFM_START, Speaker.ITSELF, Way.TELL_AND_ABORT, 1),
    (RankLost("x"), START, Speaker.ITSELF, Way.ABORT, 1),
    (SealBroken("x"), ROUND, Speaker.WRITER, Way.ABORT, 1),
    (ProtocolError("x"), ULFM, Speaker.WRITER, Way.TELL_AND_ABORT, 1),
    (ProtocolError("x"), TOLD, Speaker.WRITER, Way.ABORT, 1),
    (ConfigError("x"), ROUND, Speaker.WRITER, Way.ABORT, 2),
    (NeighbourSilent("x"), START, Speaker.IN_TURN, Way.ABORT, 1),
    (NeighbourSilent("x"), ULFM_START, Speaker.IN_TURN, Way.LAUNCHER, 1),
    (NeighbourSilent("x"), ROUND, Speaker.WRITER, Way.ABORT, 1),
    (NeighbourSilent("x"), ULFM, Speaker.WRITER, Way.LAUNCHER, 1),
    (KeyboardInterrupt(), START, Speaker.FIRST, Way.ALONE, INTERRUPTED),
    (KeyboardInterrupt(), ROUND, Speaker.WRITER, Way.ALONE, INTERRUPTED),
    (KeyboardInterrupt(), LOOPBACK, Speaker.WRITER, Way.RETURN, INTERRUPTED),
]


@pytest.mark.parametrize(("error", "place", "speaker", "way", "code"), CASES)
def test_the_table(error, place, speaker, way, code):
    assert ending(error, place) == Ending(speaker, way, code)


def test_every_speaker_and_every_way_is_in_the_table():
    assert {case[2] for case in CASES} == set(Speaker)
    assert {case[3] for case in CASES} == set(Way)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LookupError("no"), "dpmpi: loopback, round 7: unknown line: failed; more in {}, for this rank's owner"),
        (KeyboardInterrupt(), "dpmpi: loopback, round 7: interrupted"),
        (SealBroken("rank 2 lies"), "dpmpi: loopback, round 7: rank 2 lies"),
    ],
)
def test_a_failure_is_said_once_and_written_down(tmp_path, capsys, error, said):
    directory, world = RunDirectory(tmp_path), LoopbackTransport(3)
    code = ending(error, LOOPBACK).code
    assert end_run(world, error, LOOPBACK, directory, range(3)) == code
    assert end_run(world, error, LOOPBACK, directory, range(3)) == code  # ended.txt is there: another rank has spoken
    said = said.format(tmp_path / "failure" / "rank-000.txt")
    assert capsys.readouterr().err.splitlines() == [said]
    assert f"dpmpi: {(tmp_path / 'ended.txt').read_text()}" == f"{said}\n"


def test_where_there_is_a_checkpoint_the_message_says_how_to_go_on(tmp_path, capsys):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "manifest.json").touch()
    end_run(LoopbackTransport(3), ValueError("no"), LOOPBACK, RunDirectory(tmp_path), range(3))
    assert capsys.readouterr().err.strip().endswith(f"for this rank's owner; go on with --resume {tmp_path}")


def raised(kind=ValueError):
    """An error that quotes a record, as it is caught."""
    try:
        raise kind("record 17 is\n 3.14")
    except kind as error:
        return error


def test_what_a_foreign_error_says_of_private_records_stays_with_the_rank(tmp_path, capsys):
    place, names = replace(LOOPBACK, rank=2), (0, 1, 5)
    end_run(LoopbackTransport(3), raised(), place, RunDirectory(tmp_path), names)
    [said] = capsys.readouterr().err.splitlines()
    kept = tmp_path / "failure" / "rank-005.txt"
    assert re.fullmatch(
        rf"dpmpi: rank 5, round 7: test_failure.py, line \d+: failed; more in {kept}, for this rank's owner", said
    )
    assert "3.14" not in said + (tmp_path / "ended.txt").read_text()
    assert "3.14" in kept.read_text()
    assert kept.stat().st_mode & 0o777 == 0o600


def test_what_an_error_of_ours_says_of_private_records_stays_with_the_rank_too(tmp_path, capsys):
    """A plug-in's loss may raise it in a round, with a record in its words."""
    quoting, known = DataError("expected a dose, found 42 of patient 7"), DataError("expected finite values")
    known.public = True
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    end_run(LoopbackTransport(3), quoting, LOOPBACK, RunDirectory(tmp_path / "one"), range(3))
    end_run(LoopbackTransport(3), known, LOOPBACK, RunDirectory(tmp_path / "two"), range(3))
    assert "42" not in capsys.readouterr().err
    assert "42" not in (tmp_path / "one" / "ended.txt").read_text()
    assert "expected finite values" in (tmp_path / "two" / "ended.txt").read_text()


def test_what_a_foreign_error_says_of_public_records_is_said(tmp_path, capsys):
    end_run(LoopbackTransport(3), raised(), replace(LOOPBACK, public=True), RunDirectory(tmp_path), range(3))
    assert re.search(r"line \d+: ValueError: record 17 is 3.14; more in .*rank-000.txt", capsys.readouterr().err)


def test_without_a_run_directory_a_foreign_error_says_how_to_see_more(capsys):
    end_run(LoopbackTransport(3), raised(), LOOPBACK_START)
    assert re.search(r"line \d+: failed; DPMPI_TRACEBACK=1 shows more", capsys.readouterr().err)


def test_a_run_that_was_told_to_stop_says_so_and_leaves_a_note(tmp_path, capsys):
    assert end_run(LoopbackTransport(3), Preempted("told to stop"), LOOPBACK, RunDirectory(tmp_path)) == 75
    assert capsys.readouterr().err == "dpmpi: told to stop\n"
    assert (tmp_path / "ended.txt").read_text() == "told to stop\n"


def test_before_mpi_the_first_rank_speaks_at_once(capsys):
    assert refuse_unstarted(ConfigError("expected X"), 0) == 2
    assert capsys.readouterr().err == "dpmpi: expected X\n"


def test_with_ulfm_ranks_that_do_not_speak_do_not_fail(capsys, monkeypatch):
    monkeypatch.setenv("OMPI_MCA_mpi_ft_enable", "1")
    assert refuse_unstarted(ConfigError("expected X"), 3) == 0
    assert capsys.readouterr().err == ""
