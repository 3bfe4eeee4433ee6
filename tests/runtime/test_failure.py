"""Who speaks and how a process ends: the table of `dpmpi.runtime.failure`, case by case."""

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
        (ValueError("no"), "dpmpi: loopback, round 7: ValueError: no"),
        (KeyboardInterrupt(), "dpmpi: loopback, round 7: interrupted"),
        (SealBroken("rank 2 lies"), "dpmpi: loopback, round 7: rank 2 lies"),
    ],
)
def test_a_failure_is_said_once_and_written_down(tmp_path, capsys, error, said):
    directory, world = RunDirectory(tmp_path), LoopbackTransport(3)
    code = ending(error, LOOPBACK).code
    assert end_run(world, error, LOOPBACK, directory, range(3)) == code
    assert end_run(world, error, LOOPBACK, directory, range(3)) == code  # ended.txt is there: another rank has spoken
    assert capsys.readouterr().err.splitlines() == [said]
    assert f"dpmpi: {(tmp_path / 'ended.txt').read_text()}" == f"{said}\n"


def test_where_there_is_a_checkpoint_the_message_says_how_to_go_on(tmp_path, capsys):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "manifest.json").touch()
    end_run(LoopbackTransport(3), ValueError("no"), LOOPBACK, RunDirectory(tmp_path), range(3))
    assert capsys.readouterr().err.strip().endswith(f"ValueError: no; go on with --resume {tmp_path}")


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
