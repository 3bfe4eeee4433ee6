"""Naps: how long they last."""

from pathlib import Path

import needs
import pytest

from dpmpi.network import polling

TIMERS = Path("/proc/self/timerslack_ns")


@needs.linux(str(TIMERS))
def test_patience_ends():
    usual = TIMERS.read_text()
    with polling.patient():
        assert int(TIMERS.read_text()) == 1e9 * polling.SLACK > int(usual)
    assert TIMERS.read_text() == usual
    with pytest.raises(ZeroDivisionError), polling.patient():
        raise ZeroDivisionError
    assert TIMERS.read_text() == usual


@pytest.mark.parametrize("there", [False, True], ids=["no file", "not to be written"])
def test_patience_is_not_needed(monkeypatch, tmp_path, there):
    monkeypatch.setattr(polling, "_TIMERS", tmp_path if there else tmp_path / "missing" / "timers")
    with polling.patient():
        pass
