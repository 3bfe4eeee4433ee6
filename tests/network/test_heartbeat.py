"""The thread that calls MPI while a rank computes."""

import threading
import time

from dpmpi.network import heartbeat


def test_calls_come_from_another_thread_until_it_is_stopped(monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS", 0.001)
    callers, enough = [], threading.Event()

    def call():
        callers.append(threading.get_ident())
        if len(callers) >= 3 * heartbeat.CALLS:
            enough.set()

    heartbeat.start(call)
    assert enough.wait(30)
    heartbeat.stop()
    seen = list(callers)
    assert threading.get_ident() not in seen
    assert len(seen) % heartbeat.CALLS == 0  # no thread is left in the middle of its calls
    time.sleep(0.05)
    assert callers == seen
    heartbeat.stop()  # the end of the process does it again
